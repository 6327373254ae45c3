"""A loop or a process that stands still is not taken for a provider that is silent.

The loops, sockets and threads are real, the manager's time is virtual: a loop stands still while another thread moves the
clock on, and sweeps, and the loop's own thread waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrm import IdleTimeout, ResourceManager, VirtualClock
from agentrm.clock import Timer
from agentrm.scheduling import Lease
from agentrm.scheduling.stalls import MOST_STANDS

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


@pytest.mark.parametrize(
    ("awake_s", "stall_s"),
    [(0, GAP_LIMIT_S - 0.5), (0, GAP_LIMIT_S + 5), (0, 250), (GAP_LIMIT_S - 0.1, 0.2)],
)
def test_a_chunk_that_lies_in_the_socket_while_the_loop_stands_still_saves_its_call(
    awake_s: float, stall_s: float
) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader), world.rm.lease(agent="a", streams=True) as lease:
            task = asyncio.ensure_future(read(lease, reader, 3))
            await world.pass_(0.7)  # so that its limit falls between two regular looks
            peer.sendall(b"1")
            await world.pass_(0.5, lambda: lease.beats == 1)
            await world.pass_(awake_s)
            peer.sendall(b"2")
            world.block(stall_s)
            assert lease.beats == 1, "the loop stood still"
            await world.pass_(1)
            peer.sendall(b"3")
            await world.pass_(1, task.done)
            assert await task == 3 and not lease.reaped

    run(work)


def test_a_call_whose_loop_stands_still_before_it_is_sent_has_its_time_afterwards() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            asyncio.get_running_loop().call_soon(world.block, 30)
            async with world.connected() as (peer, reader):
                task = asyncio.ensure_future(read(lease, reader, 1))
                await world.pass_(0.5)
                peer.sendall(b"1")
                await world.pass_(1, task.done)
                assert await task == 1 and not lease.reaped

    run(work)


def test_a_consumer_that_blocks_between_two_chunks_keeps_its_stream() -> None:
    """Then no task is inside the call: the loop is that in which its lane was acquired."""

    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader):
            lease = await world.rm.lease(agent="a", streams=True).acquire_async()
            peer.sendall(b"1")
            await read(lease, reader, 1)
            peer.sendall(b"2")
            world.block(60)
            assert await read(lease, reader, 1) == 2
            lease.release()

    run(work)


def test_a_hung_call_is_found_after_its_limit_and_the_standstill() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            lease.heartbeat()
            task = asyncio.ensure_future(world.never(lease))
            await world.pass_(5)
            world.block(40)
            found = await world.pass_(100, task.done)
            with pytest.raises(IdleTimeout):
                await task
            lease.error = None
            assert GAP_LIMIT_S - SWEEP_S <= 5 + found <= GAP_LIMIT_S + 2 * SWEEP_S

    run(work)


@pytest.mark.parametrize(("block_s", "awake_s"), [(0.6, 0), (0.6, 0.3), (1.5, 0), (1.5, 0.5), (5, 1), (40, 2)])
@pytest.mark.parametrize("begun", [True, False])
def test_a_loop_that_stands_still_again_and_again_hides_no_hung_call(
    begun: bool, block_s: float, awake_s: float
) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            if begun:
                lease.heartbeat()
            task, start = asyncio.ensure_future(world.never(lease)), world.clock.elapsed
            most_s = (GAP_LIMIT_S if begun else FIRST_LIMIT_S) + (MOST_STANDS + 2) * (block_s + awake_s)
            while not task.done() and world.clock.elapsed - start < most_s:
                world.block(block_s)
                await world.pass_(awake_s)
            await breathe()
            assert lease.reaped
            with pytest.raises(IdleTimeout):
                await task
            lease.error = None

    run(work)


def test_nor_does_a_process_that_stands_still_again_and_again() -> None:
    world = World()
    lease = world.rm.lease(agent="a").acquire()
    while not lease.reaped and world.clock.elapsed < 300 + (MOST_STANDS + 2) * 20:
        world.clock._now += 20 * 10**9
        world.clock.advance(1)
    assert lease.reaped
    lease.release()


def test_a_process_that_stood_still_while_a_loop_was_asked_excuses_its_calls_from_the_fixed_limit_too() -> None:
    async def work(world: World) -> None:
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(5)
            world.block(10)
            world.clock._now += 400 * 10**9
            world.clock.advance(0)
            assert not lease.reaped
            await world.pass_(1)
            assert not lease.reaped

    run(work)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_chunk_that_one_task_hands_on_to_another_saves_its_call_too(hops: int) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader), world.rm.lease(agent="a", streams=True) as lease:
            queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(hops)]

            async def hand_on(i: int) -> None:
                while True:
                    queues[i].put_nowait(await (queues[i - 1].get() if i else reader.readexactly(1)))

            between = [asyncio.ensure_future(hand_on(i)) for i in range(hops)]

            async def consume() -> None:
                with lease.guard():
                    for _ in range(2):
                        await queues[-1].get()
                        lease.heartbeat()

            task = asyncio.ensure_future(consume())
            peer.sendall(b"1")
            await world.pass_(0.5, lambda: lease.beats == 1)
            await world.pass_(GAP_LIMIT_S - 0.05)
            peer.sendall(b"2")
            world.block(0.06)
            await world.pass_(1, task.done)
            await task
            assert lease.beats == 2 and not lease.reaped
            for other in between:
                other.cancel()

    run(work)


@pytest.mark.parametrize("begun", [True, False])
def test_a_standstill_is_not_learnt_as_the_provider_s_silence(begun: bool) -> None:
    async def work(world: World) -> None:
        await world.taught()
        before = await world.hang(begun=begun)
        async with world.rm.lease(agent="a", streams=True) as lease:
            if begun:
                await world.pass_(0.5)
                lease.heartbeat()
            world.block(11)
            lease.heartbeat()  # at once, before the loop has answered: the chunk was in the client's buffer
            await breathe()
            assert not lease.reaped
        assert await world.hang(begun=begun) == pytest.approx(before, abs=SWEEP_S)
        assert before == pytest.approx(GAP_LIMIT_S if begun else FIRST_LIMIT_S, abs=SWEEP_S)

    run(work)


def test_nor_is_that_of_a_call_without_chunks_learnt_as_its_duration() -> None:
    async def work(world: World) -> None:
        async def whole(blocked_s: float) -> None:
            async with world.rm.lease(agent="a"):
                await world.pass_(10)
                world.block(blocked_s)
                await breathe()

        async def hung() -> float:
            async with world.rm.lease(agent="hung") as lease:
                task = asyncio.ensure_future(world.never(lease))
                found = await world.pass_(1000, task.done)
                with pytest.raises(IdleTimeout):
                    await task
                lease.error = None
                lease.refund()
            return found

        for _ in range(4):
            await whole(0)
        await whole(9)
        assert await hung() == pytest.approx(60, abs=2 * SWEEP_S)  # six times 10 s, not 19 s

    run(work)


def test_a_slow_provider_is_learnt_whole_where_the_loop_was_awake() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            lease.heartbeat()
            await world.pass_(10)
            lease.heartbeat()
        assert await world.hang() == pytest.approx(60, abs=SWEEP_S)

    run(work)


def test_a_loop_that_never_answers_keeps_its_calls_until_their_fixed_limit() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            lease.heartbeat()
            world.block(299)
            assert not lease.reaped
            world.block(2)
            assert lease.reaped and world.rm.statistics().running == 0, "its lane is free before the loop is back"
            lease.error = None

    run(work)


def test_a_loop_is_asked_once_a_sweep_however_many_calls_it_has_and_never_while_all_show_progress() -> None:
    asked: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **more: Any) -> Any:
            asked.append(args)
            return super().call_soon_threadsafe(*args, **more)

    async def work(world: World) -> None:
        leases = [await world.rm.lease(agent=f"a{i}", streams=True).acquire_async() for i in range(50)]
        for _ in range(10):
            await world.pass_(0.5)
            for lease in leases:
                lease.heartbeat()
        assert not asked
        await world.pass_(11)
        assert len(asked) == 10  # the first sweep saw them after less than one of silence
        world.block(100)
        assert len(asked) == 11, "one question, not one each second"
        for lease in leases:
            lease.release()

    world, loop = World(), Loop()
    loop.run_until_complete(work(world))
    loop.close()


def test_nobody_looks_more_often_because_a_loop_stands_still() -> None:
    looks: list[int] = []

    class Clock(VirtualClock):
        def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
            looks.append(when_ns)
            return super().call_at(when_ns, fn)

    async def work(world: World) -> None:
        leases = [await world.rm.lease(agent=f"a{i}", streams=True).acquire_async() for i in range(20)]
        for lease in leases:  # at any moment one of them is about to have been silent for too long
            lease.heartbeat()
            await world.pass_(0.05)
        await world.pass_(58.6)
        looks.clear()
        world.block(100)
        assert 90 <= len(looks) <= 120  # one a second, and when each call was due
        for lease in leases:
            assert not lease.reaped
            lease.release()

    run(work, Clock())


def test_a_loop_that_closes_without_an_answer_excuses_nobody_any_more() -> None:
    world = World()
    leases: list[Lease] = []

    async def work() -> None:
        await world.taught()
        leases.append(await world.rm.lease(agent="a", streams=True).acquire_async())
        leases[0].heartbeat()

    def last() -> None:
        world.block(10)  # the loop is asked
        raise SystemExit

    loop = asyncio.new_event_loop()
    loop.run_until_complete(work())
    loop.call_soon(last)
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.close()
    world.clock.advance(GAP_LIMIT_S - 10 + SWEEP_S)
    assert leases[0].reaped
    leases[0].release()


def test_a_loop_that_stands_still_excuses_no_call_of_another_loop() -> None:
    async def work(world: World) -> None:
        await world.taught()
        begun, others = threading.Event(), []

        async def elsewhere() -> None:
            others.append(asyncio.get_running_loop())
            with pytest.raises(IdleTimeout):
                async with world.rm.lease(agent="hung", streams=True) as hung:
                    hung.heartbeat()
                    begun.set()
                    await asyncio.Event().wait()

        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        async with world.rm.lease(agent="here", streams=True) as lease:
            thread.start()
            assert begun.wait(10)
            lease.heartbeat()
            while thread.is_alive() and world.clock.elapsed < 60:  # this loop stands still, the other one goes round
                world.clock.advance(0.5)
                work = breathe()
                try:
                    asyncio.run_coroutine_threadsafe(work, others[0]).result(10)
                except (RuntimeError, concurrent.futures.CancelledError):  # it has ended
                    work.close()
                    thread.join(10)
            assert not thread.is_alive() and not lease.reaped
        thread.join(10)

    run(work)


def test_a_process_that_stood_still_excuses_blocked_threads_too() -> None:
    world = World()
    lease = world.rm.lease(agent="a").acquire()
    other = world.rm.lease(agent="b", idle_s=20).acquire()
    world.clock.advance(10)
    world.clock._now += 290 * 10**9  # stopped: no sweep comes in this time
    world.clock.advance(0)
    assert not lease.reaped and not other.reaped
    world.clock.advance(12)
    assert other.reaped and not lease.reaped
    world.clock.advance(300 - 22 + 2)
    assert lease.reaped
    lease.release()
    other.release()
