"""An event loop whose time is a `VirtualClock`: async code runs to its end, minutes pass in no time, nothing sleeps."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentrm import ResourceManager, VirtualClock

T = TypeVar("T")
LONGEST_S = 100_000.0
THREADS_S = 10.0


class Stuck(AssertionError):
    """Nothing can ever happen again, or nothing has in a day of virtual time."""


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Where a real loop would sleep, this one moves the clock to the next thing due: a timer of the loop or of the
    clock."""

    def __init__(self, clock: VirtualClock, longest_s: float) -> None:
        super().__init__()
        self.clock, self._end_s = clock, clock.elapsed + longest_s

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self.clock.advance(0)
            return ready
        times = [] if timeout is None else [self.clock.now_ns() + math.ceil(timeout * 1e9)]
        if (when := self.clock.next_timer_ns()) is not None:
            times.append(when)
        if not times:  # only another thread can help
            ready = super().select(THREADS_S)
            if not ready:
                raise Stuck("every task waits and no timer is set")
            return ready
        if self.clock.elapsed > self._end_s:
            raise Stuck(f"no end after {self.clock.elapsed:g} virtual seconds")
        self.clock.advance(max(0, min(times) - self.clock.now_ns()) / 1e9)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, clock: VirtualClock, longest_s: float = LONGEST_S) -> None:
        super().__init__(_Selector(clock, longest_s))
        self.clock = clock

    def time(self) -> float:
        return self.clock.now_ns() / 1e9


def run(clock: VirtualClock, work: Callable[[], Coroutine[Any, Any, T]], *, longest_s: float = LONGEST_S) -> T:
    """Runs `work()` under the clock, as `asyncio.run` does: what is left at its end is cancelled."""
    loop = VirtualLoop(clock, longest_s)
    try:
        return loop.run_until_complete(work())
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Scene:
    """A manager on a virtual clock, and a record of who ran when."""

    def __init__(self, *, seed: int = 1, **sections: Any) -> None:
        self.clock = VirtualClock()
        self.rm = ResourceManager(clock=self.clock, seed=seed, **sections)
        self.started: list[tuple[str, float]] = []
        self.ended: list[tuple[str, float]] = []
        self.inside = self.most_inside = 0

    @property
    def now(self) -> float:
        return round(self.clock.elapsed, 6)

    @property
    def order(self) -> list[str]:
        """Names of the calls in the order in which they started."""
        return [name for name, _ in self.started]

    def start_of(self, name: str) -> float:
        return dict(self.started)[name]

    def enter(self, name: str) -> None:
        self.started.append((name, self.now))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)

    def leave(self, name: str) -> None:
        self.inside -= 1
        self.ended.append((name, self.now))

    async def call(
        self, name: str, seconds: float = 1.0, *, at: float | None = None, use: int | None = None, **asked: Any
    ) -> str:
        """One call: arrives `at` seconds, runs for `seconds`, settles `use` tokens if given."""
        if at is not None:
            await asyncio.sleep(at - self.clock.elapsed)
        asked.setdefault("agent", name)
        async with self.rm.lease(**asked) as lease:
            self.enter(name)
            try:
                await asyncio.sleep(seconds)
                if use is not None:
                    lease.settle(output_tokens=use)
            finally:
                self.leave(name)
        return name

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, longest_s: float = LONGEST_S) -> T:
        return run(self.clock, work, longest_s=longest_s)

    def run_all(self, *calls: Coroutine[Any, Any, Any], longest_s: float = LONGEST_S) -> list[Any]:
        """Runs them side by side; returns results and exceptions in their order."""

        async def all_() -> list[Any]:
            return await asyncio.gather(*calls, return_exceptions=True)

        return self.run(all_, longest_s=longest_s)

    def at_rest(self, *pools: str) -> None:
        """Nothing runs, waits or is owed, the kernel's invariants hold, and the next call of each pool runs at once."""
        self.rm.kernel.check()
        for name, pool in self.rm.statistics().pools.items():
            assert (pool.in_use, pool.waiting, pool.zombies) == (0, 0, 0), (name, pool)
        assert not self.rm.gate.leases and not self.rm.gate.queued and not self.rm.gate.waiters
        self.clock.advance(86_400)  # what rates and refusals hold up is not meant here
        self.rm.reopen()
        for name in pools or ("default",):
            assert_next_runs(self.rm, pool=name)


def assert_next_runs(rm: ResourceManager, **asked: Any) -> None:
    """As many calls as there are lanes start at once, and one more waits and runs when one of them ends."""
    lanes = rm.statistics().pools[asked.get("pool", "default")].lanes
    held = [rm.try_lease(tokens=0, agent="next", **asked) for _ in range(lanes)]
    assert all(held), "a lane is not free"
    assert rm.try_lease(tokens=0, agent="next", **asked) is None, "more calls than lanes"
    for lease in held:
        assert lease is not None
        lease.refund()
        lease.release()


def until(happened: Callable[[], bool], within_s: float = THREADS_S) -> None:
    """Waits, in real time, until other threads have got somewhere. Fails after `within_s`; how fast it is does not
    matter."""
    tick = threading.Event()
    for _ in range(int(within_s / 0.001)):
        if happened():
            return
        tick.wait(0.001)
    raise Stuck("the other threads did not get there")


def in_threads(*work: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=x, daemon=True) for x in work]
    for thread in threads:
        thread.start()
    return threads
