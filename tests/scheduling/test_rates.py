"""Rates on the virtual clock: exactly the limit, never more in any window, in order, and with no timer that only
looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from agentrm import ResourceManager, VirtualClock
from agentrm.clock import Timer
from tests.scheduling.driver import Scene, in_threads, until

PER_S = 50


class Counting(VirtualClock):
    """Counts how often each kind of timer fires."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: dict[str, int] = {}

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        name = getattr(fn, "__qualname__", repr(fn))

        def fire() -> None:
            self.fired[name] = self.fired.get(name, 0) + 1
            fn()

        return super().call_at(when_ns, fire)


def most_in_a_window(times: list[float], window: float) -> int:
    most = first = 0
    for i, t in enumerate(times):
        while times[first] <= t - window:
            first += 1
        most = max(most, i - first + 1)
    return most


def greedy(limit: dict[str, object], callers: int, seconds: float, *, tokens: int = 0) -> list[float]:
    """Times at which calls of no length were admitted to callers that ask again at once."""
    scene = Scene(pools={"default": {"lanes": 1000, "limits": [limit]}})

    async def caller(i: int) -> None:
        while True:
            await scene.call(f"c{i}", 0, tokens=tokens)

    async def all_() -> None:
        await asyncio.wait([asyncio.ensure_future(caller(i)) for i in range(callers)], timeout=seconds)

    scene.run(all_)
    scene.rm.kernel.check()
    return [at for _, at in scene.started]


@pytest.mark.parametrize("callers", [1, 200])
@pytest.mark.parametrize("shape", ["rolling", "bucket"])
@pytest.mark.parametrize(("unit", "size"), [("requests", 1), ("tokens", 7)])
def test_the_admitted_rate_is_the_limit(callers: int, shape: str, unit: str, size: int) -> None:
    limit: dict[str, object] = {unit: PER_S * size, "per": 1, "shape": shape}
    if shape == "bucket":
        limit["burst"] = size
    times = greedy(limit, callers, 60.01, tokens=size if unit == "tokens" else 0)
    after = sum(0 < t <= 60.005 for t in times) / 60
    assert after == pytest.approx(PER_S, rel=0.005)
    assert most_in_a_window(times, 1.0) <= PER_S + (1 if shape == "bucket" else 0)


@pytest.mark.parametrize("callers", [1, 200])
def test_no_rolling_window_is_over_the_limit_whatever_the_load(callers: int, rng: object) -> None:
    """Calls come in clumps, some are refunded, some fail: a window sees at most the limit in calls that were made."""
    import random

    assert isinstance(rng, random.Random)
    scene = Scene(pools={"default": {"lanes": 1000, "limits": [{"requests": 30, "per": 7}]}})
    made: list[float] = []

    async def caller() -> None:
        for _ in range(2000 // callers):
            await asyncio.sleep(rng.choice((0, 0, 0, 0.1, 5)) * rng.random())
            try:
                async with scene.rm.lease() as lease:
                    at = scene.clock.elapsed
                    if rng.random() < 0.2:
                        lease.refund()
                        continue
                    made.append(at)
                    await asyncio.sleep(rng.random())
                    if rng.random() < 0.1:
                        raise ValueError
            except ValueError:
                pass

    scene.run_all(*(caller() for _ in range(callers)))
    assert len(made) > 1000
    assert most_in_a_window(sorted(made), 7.0) <= 30


def test_a_bucket_sees_at_most_its_burst_and_what_flows_in() -> None:
    times = greedy({"tokens": 1000, "per": 10, "burst": 300}, 20, 60.0, tokens=10)
    assert sum(t == 0 for t in times) == 30
    assert most_in_a_window(times, 10.0) <= 130
    assert sum(0 < t <= 60 for t in times) / 60 == pytest.approx(10, rel=0.005)


def test_sync_callers_are_admitted_at_the_same_rate() -> None:
    clock = Counting()
    rm = ResourceManager(pools={"default": {"lanes": 1000, "limits": [{"requests": 10, "per": 1}]}}, clock=clock)
    over = threading.Event()

    def caller(i: int) -> None:
        while not over.is_set():
            with rm.lease(agent=f"c{i}"):
                pass

    threads = in_threads(*(lambda i=i: caller(i) for i in range(20)))
    for _ in range(30):
        until(lambda: rm.statistics().waiting == 20)
        when = clock.next_timer_ns()
        assert when is not None
        clock.advance(1.000001)
    times = [e.time_ns / 1e9 - 1 for e in rm.events() if e.kind == "grant"]
    assert sum(0 < t <= 29.5 for t in times) / 29 == pytest.approx(10, rel=0.005)
    assert most_in_a_window(times, 1.0) <= 10
    over.set()
    while any(thread.is_alive() for thread in threads):
        clock.advance(1.000001)
        for thread in threads:
            thread.join(0.01)


@pytest.mark.parametrize("limit", [{"requests": 10, "per": 1}, {"tokens": 100, "per": 1, "burst": 10}])
def test_equal_callers_are_served_in_the_order_of_their_arrival(limit: dict[str, object]) -> None:
    scene = Scene(pools={"default": {"lanes": 1000, "limits": [limit]}})
    names = [f"c{i:03}" for i in range(200)]
    scene.run_all(*(scene.call(name, 0, at=0.001 * i, tokens=10) for i, name in enumerate(names)))
    assert scene.order == names


def test_each_waits_exactly_until_its_tokens_exist() -> None:
    scene = Scene(pools={"default": {"lanes": 99, "limits": [{"tokens": 60, "per": 60, "burst": 60}]}})
    scene.run_all(*(scene.call(f"c{i}", 0, tokens=30) for i in range(6)))
    assert [at for _, at in scene.started] == pytest.approx([0, 0, 30, 60, 90, 120], abs=1e-5)


@pytest.mark.parametrize("passes", [0, 16])
def test_a_large_request_is_served_within_the_backfill_bound(passes: int) -> None:
    """900 of 1000 tokens among callers of 50 that never rest: passed `passes` times at most, then saved up for."""
    scene = Scene(
        pools={"default": {"lanes": 1000, "limits": [{"tokens": 1000, "per": 1}]}},
        waiting={"backfill": {"passes": passes, "max_s": 2}},
    )

    async def small(i: int) -> None:
        while True:
            await scene.call(f"s{i}", 0.01, tokens=50)

    async def all_() -> None:
        callers = [asyncio.ensure_future(small(i)) for i in range(10)]
        await asyncio.sleep(5)
        mark = len(scene.order)
        asked = scene.clock.elapsed
        await scene.call("large", 0, tokens=900)
        before = scene.order.index("large") - mark
        assert before <= passes + 10  # those that came before it are not passing it
        assert scene.start_of("large") - asked <= 2 + 900 / 1000 + 0.1
        await asyncio.sleep(1)
        assert len(scene.order) > mark + before + 10, "the small ones went on"
        for task in callers:
            task.cancel()

    scene.run(all_)


def test_no_timer_fires_but_to_grant_something() -> None:
    clock = Counting()
    scene = Scene(pools={"default": {"lanes": 1000, "limits": [{"requests": 10, "per": 60}]}})
    scene.clock = clock
    scene.rm = ResourceManager(
        pools={"default": {"lanes": 1000, "limits": [{"requests": 10, "per": 60}]}},
        reaper={"sweep_s": 600},
        clock=clock,
    )
    scene.run_all(*(scene.call(f"c{i}", 0) for i in range(100)))
    ticks = clock.fired.pop("Gate.tick")
    assert ticks <= 9 + 4, f"{ticks} looks for 9 windows"
    assert sum(clock.fired.values()) <= 600 / 600 + 1, clock.fired


def test_a_hundred_thousand_wait_and_one_timer_stands_for_all() -> None:
    scene = Scene(pools={"default": {"lanes": 10}}, waiting={"max_queued": 200_000})
    leases = [scene.rm.lease(agent=f"a{i % 100}") for i in range(100_000)]
    loop_free = [lease.acquire_async() for lease in leases]

    async def all_() -> None:
        for coroutine in loop_free:
            try:
                coroutine.send(None)
            except StopIteration:
                continue
        assert scene.rm.statistics().waiting == 100_000 - 10
        for lease in leases:
            lease.release()
        for coroutine in loop_free:
            coroutine.close()

    scene.run(all_)
    scene.at_rest()


def test_time_that_stands_still_or_goes_back_breaks_nothing() -> None:
    scene = Scene(pools={"default": {"lanes": 2, "limits": [{"tokens": 100, "per": 10}, {"requests": 5, "per": 10}]}})
    scene.run_all(scene.call("a", 0, tokens=100), scene.call("b", 0, tokens=50))
    scene.clock._now -= 4_000_000_000
    scene.rm.kernel.check()
    before = scene.clock.elapsed
    scene.run(lambda: scene.call("c", 0, tokens=50))
    assert scene.clock.elapsed - before <= 4 + 10 + 0.001
    scene.rm.kernel.check()


def test_wall_time_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def no(*_: object) -> float:
        raise AssertionError("wall time")

    monkeypatch.setattr(time, "time", no)
    rm = ResourceManager(pools={"default": {"lanes": 1, "limits": [{"requests": 100, "per": 0.01}]}})
    for _ in range(150):
        with rm.lease():
            pass
