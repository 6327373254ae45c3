"""Bug reports of area d: fairness between agents and tenants."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from agentrm import ResourceManager, VirtualClock
from tests.scheduling.driver import run


def manager(**sections: object) -> tuple[ResourceManager, VirtualClock]:
    clock = VirtualClock()
    return ResourceManager(clock=clock, seed=1, **sections), clock  # type: ignore[arg-type]


async def call(rm: ResourceManager, who: str, tokens: int, seconds: float, done: list[tuple[str, float]]) -> None:
    async with rm.lease(agent=who, tenant=who, priority="background", tokens=tokens) as lease:
        done.append((who, lease._rm.clock.now_ns() / 1e9))
        await asyncio.sleep(seconds)
        lease.settle(input_tokens=tokens)


@pytest.mark.parametrize("idle_s", [0, 600, 7200])
def test_r57_whoever_was_idle_comes_in_level_with_the_others(idle_s: int) -> None:
    rm, clock = manager(pools={"default": {"lanes": 1}})
    done: list[tuple[str, float]] = []

    async def main() -> None:
        if idle_s:
            await call(rm, "C", 1000, 1, [])
            await asyncio.sleep(idle_s)
        first = [asyncio.create_task(call(rm, who, 1000, 1, done)) for _ in range(80) for who in "AB"]
        await asyncio.sleep(100)
        served = len(done)
        late = [asyncio.create_task(call(rm, "C", 1000, 1, done)) for _ in range(20)]
        await asyncio.gather(*first, *late)
        counts = Counter(who for who, _ in done[served : served + 30])
        assert 9 <= counts["C"] <= 11
        assert 9 <= counts["A"] <= 11

    run(clock, main)


@pytest.mark.parametrize(("large", "small"), [(10_000, 100), (5_000, 1_000)])
def test_r58_shares_are_counted_in_work_not_in_requests(large: int, small: int) -> None:
    rm, clock = manager(pools={"default": {"lanes": 1}})
    served: Counter[str] = Counter()

    async def user(who: str, tokens: int) -> None:
        while sum(served.values()) < 1_000_000:
            async with rm.lease(agent=who, tenant=who, priority="background", tokens=tokens) as lease:
                await asyncio.sleep(0.01)
                if sum(served.values()) < 1_000_000:
                    served[who] += tokens
                lease.settle(input_tokens=tokens)

    async def main() -> None:
        await asyncio.gather(*(user("A", large) for _ in range(3)), *(user("B", small) for _ in range(3)))

    run(clock, main)
    assert abs(served["A"] - served["B"]) <= large
    assert rm.statistics().fairness["default"].jain >= 0.95


def test_r61_an_unlabelled_caller_gets_no_more_than_the_least_of_the_listed() -> None:
    rm, clock = manager(pools={"default": {"lanes": 1}}, tenants={"prod": {"weight": 0.9}, "dev": {"weight": 0.1}})
    assert rm.config.weight_of("somebody") == 0.1
    done: list[tuple[str, float]] = []

    async def main() -> None:
        names = ("prod", "dev", "somebody")
        await asyncio.gather(*(call(rm, who, 100, 1, done) for _ in range(110) for who in names))

    run(clock, main)
    counts = Counter(who for who, _ in done[:110])
    assert counts["somebody"] <= counts["dev"] + 1
    assert counts["prod"] >= 8 * counts["dev"]
    named, _ = manager(tenants={"prod": {"weight": 0.9}, "default": {"weight": 0.5}})
    assert named.config.weight_of("somebody") == 0.5  # said, so it holds


def test_r63_one_tenant_s_pace_delays_its_calls_and_nobody_else_s() -> None:
    # A tenant's token rate is a pool of its own with a bucket; another tenant's calls go through another pool.
    pools = {"slow": {"lanes": 4, "limits": [{"tokens": 600, "per": 60, "burst": 200}]}, "default": {"lanes": 4}}

    def waits(with_a: bool) -> tuple[list[float], list[float]]:
        rm, clock = manager(pools=pools)
        starts: list[float] = []
        delays: list[float] = []

        async def a() -> None:
            async with rm.lease(agent="A", tenant="A", pool="slow", tokens=200) as lease:
                starts.append(clock.elapsed)
                lease.settle(input_tokens=200)

        async def b() -> None:
            for _ in range(50):
                async with rm.lease(agent="B", tenant="B", tokens=200) as lease:
                    delays.append(lease.waited_s)
                    await asyncio.sleep(1)

        async def main() -> None:
            await asyncio.gather(b(), *([a() for _ in range(10)] if with_a else []))

        run(clock, main)
        return starts, delays

    starts, with_a = waits(True)
    assert starts == pytest.approx([20 * k for k in range(10)], abs=0.01)
    assert with_a == waits(False)[1]


def test_r65_a_lane_goes_to_the_longest_waiter_not_to_whoever_asks_at_the_right_moment() -> None:
    rm, clock = manager(pools={"default": {"lanes": 1}})
    done: list[tuple[str, float]] = []

    async def greedy() -> None:
        for _ in range(40):
            await call(rm, "A", 0, 0.05, done)

    async def once() -> None:
        await asyncio.sleep(0.01)
        await call(rm, "B", 0, 0.05, done)

    async def main() -> None:
        start = clock.now_ns() / 1e9
        await asyncio.gather(greedy(), once())
        assert done[1] == ("B", pytest.approx(start + 0.05, abs=1e-6))
        done.clear()
        names = [f"agent{i}" for i in range(20)]
        await asyncio.gather(*(call(rm, who, 0, 0.05, done) for who in names))
        assert [who for who, _ in done] == names

    run(clock, main)
