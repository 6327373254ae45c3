"""A world in which loops and processes stand still.

The loops, sockets and threads are real, the manager's time is virtual: a loop stands still while another thread moves the
clock on, and sweeps, and the loop's own thread waits for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrm import IdleTimeout, ResourceManager, VirtualClock
from agentrm.scheduling import Lease

GAP_LIMIT_S, FIRST_LIMIT_S, SWEEP_S = 15.0, 2.0, 1.0
"""What is learnt from the calls of `taught`."""


class World:
    """A manager, and a provider that sends what a test tells it to."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.rm = ResourceManager(clock=self.clock, pools={"default": {"lanes": 64}})

    def block(self, seconds: float) -> None:
        """Blocking code in the thread of the caller; time goes on elsewhere."""
        other = threading.Thread(target=self.clock.advance, args=(seconds,))
        other.start()
        other.join()

    async def pass_(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Time goes on, and the loop goes round whenever something is due. Returns how long until it was so."""
        clock = self.clock
        begun, end = clock.elapsed, clock.now_ns() + round(seconds * 1e9)
        await breathe()
        while clock.now_ns() < end and not until():
            due = clock.next_timer_ns()
            clock.advance((end - clock.now_ns() if due is None else min(end, due) - clock.now_ns()) / 1e9)
            await breathe()
        return clock.elapsed - begun

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[socket.socket, asyncio.StreamReader]]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            reader, writer = await asyncio.open_connection(*server.getsockname())
            peer, _ = server.accept()
            try:
                yield peer, reader
            finally:
                peer.close()
                writer.close()
                await writer.wait_closed()

    async def taught(self) -> None:
        """Healthy calls show that a first chunk takes half a second and the next one a second."""
        for _ in range(8):
            async with self.rm.lease(agent="taught", streams=True) as lease:
                await self.pass_(0.5)
                lease.heartbeat()
                await self.pass_(1)
                lease.heartbeat()

    async def hang(self, *, begun: bool = True) -> float:
        """Seconds of silence after which such a call is found."""
        async with self.rm.lease(agent="hung", streams=True) as lease:
            if begun:
                await self.pass_(0.5)
                lease.heartbeat()
            work = asyncio.ensure_future(self.never(lease))
            found = await self.pass_(1000, work.done)
            with pytest.raises(IdleTimeout):
                await work
            lease.refund()
            assert lease.reaped
            lease.error = None
        return found

    async def never(self, lease: Lease) -> None:
        with lease.guard():
            await asyncio.Event().wait()


async def breathe() -> None:
    """The loop goes round until nothing is left that time does not bring about."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Callable[[World], Coroutine[Any, Any, None]], clock: VirtualClock | None = None) -> None:
    world = World(clock)
    asyncio.run(work(world))
    world.rm.kernel.check()
    assert world.rm.statistics().running == 0


async def read(lease: Lease, reader: asyncio.StreamReader, chunks: int) -> int:
    with lease.guard():
        for _ in range(chunks):
            await reader.readexactly(1)
            lease.heartbeat()
    return lease.beats
