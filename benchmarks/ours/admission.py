"""10,000 coroutines in the kernel's queue, each with a future; priorities, fairness, lanes and two limits decide."""

from __future__ import annotations

import asyncio

from benchmarks import sizes
from benchmarks.admission import burst, chain
from benchmarks.ours.kernel import SETTLED, TOKENS_A_CALL, Traffic


class _Turnstile:
    """All lanes are taken by calls that ran before; `release_one` ends one of them."""

    def __init__(self, lanes: int) -> None:
        traffic = Traffic(0, lanes=lanes, room=sizes.COROUTINES)
        self.port, self.leave, self.running = traffic.port, traffic.port.leave, traffic.running
        self.who = traffic.callers[0]
        self.futures: list[asyncio.Future[None] | None] = [None] * traffic.tickets  # by ticket
        self.loop = asyncio.get_running_loop()

    async def wait(self) -> None:
        handle = self.port.enter(self.who | 1 << 10, TOKENS_A_CALL) >> 1
        self.futures[handle & 0xFFFFFF] = future = self.loop.create_future()
        await future
        self.running.append(handle)

    def release_one(self) -> None:
        handle = self.leave(self.running.pop(), SETTLED)
        if handle:
            self.futures[handle & 0xFFFFFF].set_result(None)  # type: ignore[union-attr]


CASES = {
    "admit-10k-burst": lambda: lambda: burst(lambda: _Turnstile(sizes.COROUTINES)),
    "admit-10k-chain": lambda: lambda: chain(lambda: _Turnstile(1)),
}
