"""A pace delays calls, in order, and lets go of those that leave."""

from __future__ import annotations

import asyncio

import pytest

import agentrm
from agentrm.limits.account import BudgetStatistics
from tests.scheduling.driver import Scene


def of(rm: agentrm.ResourceManager, name: str) -> BudgetStatistics:
    return rm.statistics().budgets[name]


def test_a_pace_delays_and_keeps_the_order() -> None:
    scene = Scene(budgets={"tenant.t": {"pace": 600, "burst": 200}}, pools={"default": {"lanes": 20}})
    calls = [scene.call(f"c{n}", 1, tenant="t", tokens=200, use=200) for n in range(10)]
    others = [scene.call(f"o{n}", 1, tenant="other", tokens=5000, use=5000) for n in range(3)]
    assert not [x for x in scene.run_all(*calls, *others) if isinstance(x, BaseException)]
    assert [scene.start_of(f"c{n}") for n in range(10)] == pytest.approx([20.0 * n for n in range(10)], abs=1e-3)
    assert {scene.start_of(f"o{n}") for n in range(3)} == {0.0}
    scene.at_rest()


def test_a_pace_is_corrected_by_the_real_use() -> None:
    scene = Scene(budgets={"agent.a": {"pace": 600}})
    scene.run_all(
        scene.call("x", 1, agent="a", tokens=100, use=10),
        scene.call("y", 1, at=0.5, agent="a", tokens=100, use=100),
    )
    assert scene.start_of("y") == pytest.approx(1.0, abs=1e-3)


def test_a_call_leaves_the_pace_when_cancelled_timed_out_or_closed() -> None:
    scene = Scene(budgets={"agent.a": {"pace": 60, "tokens": 10_000}})
    rm = scene.rm

    async def story() -> None:
        await scene.call("first", 0, agent="a", tokens=100, use=100)  # the next may go after 100 s
        assert rm.try_lease(agent="a", tokens=1) is None
        cancelled = asyncio.ensure_future(scene.call("cancelled", agent="a", tokens=1000))
        with pytest.raises(agentrm.QueueTimeout, match="pace"):
            await scene.call("late", agent="a", tokens=1, wait_max=5)
        assert of(rm, "agent.a").delayed_now == 1
        cancelled.cancel()
        await asyncio.sleep(0)
        assert of(rm, "agent.a").delayed_now == 0
        await scene.call("second", 0, agent="a", tokens=10, use=10)
        assert scene.start_of("second") == pytest.approx(100, abs=1e-3)
        closed = asyncio.ensure_future(scene.call("closed", agent="a", tokens=1))
        await asyncio.sleep(1)
        await rm.aclose()
        with pytest.raises(agentrm.ManagerClosed):
            await closed

    scene.run(story)
    found = of(rm, "agent.a")
    assert (found.spent["tokens"], found.reserved["tokens"], found.delayed_now) == (110, 0, 0)


def test_a_thread_waits_for_its_pace() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"pace": 600_000}}) as rm:
        for _ in range(3):
            with rm.lease(agent="a", tokens=100, wait_max=30) as lease:  # 10 ms apart
                lease.settle(output_tokens=100)
        assert of(rm, "agent.a").spent["tokens"] == 300
