"""Pressure follows a known load, exactly, on the manager's clock."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentrm import ResourceManager, VirtualClock
from tests.scheduling.driver import Scene


def test_a_manager_at_rest_has_no_pressure_and_no_note() -> None:
    scene = Scene()
    with scene.rm.lease(tokens=1):
        scene.clock.advance(100)
    found = scene.rm.pressure()
    assert found.lanes.some.avg10 == found.rate.some.avg10 == found.lanes.full.avg10 == 0
    assert found.pools == {}
    assert found.note() == ""


@pytest.mark.parametrize("period,share", [(1.0, 0.25), (4.0, 0.5), (2.0, 0.9)])
def test_pressure_on_lanes_follows_a_periodic_load(period: float, share: float) -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def load() -> None:
        for n in range(round(1500 / period)):
            start = n * period
            # the second waits while the first runs, and takes no time itself
            await asyncio.gather(
                scene.call(f"a{n}", period * share, at=start), scene.call(f"b{n}", 0, at=start, agent="other")
            )

    scene.run(load)
    found = scene.rm.pressure().lanes
    assert found.some.avg60 == pytest.approx(share, rel=0.1)
    assert found.some.avg300 == pytest.approx(share, rel=0.1)
    assert found.some.total_s == pytest.approx(1500 * share, rel=0.01)
    assert found.full.avg300 == 0  # the holder of the lane is at work
    assert scene.rm.pressure().rate.some.total_s == 0


def test_the_averages_are_exact() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    scene.run_all(scene.call("a", 30), scene.call("b", 0, at=0.0))
    scene.clock.advance(20)
    some = scene.rm.pressure().lanes.some
    for average, window in ((some.avg10, 10), (some.avg60, 60), (some.avg300, 300)):
        assert average == pytest.approx((1 - math.exp(-30 / window)) * math.exp(-20 / window), rel=1e-6)


def test_waiting_for_rate_is_told_from_waiting_for_lanes() -> None:
    scene = Scene(pools={"default": {"lanes": 4, "limits": [{"requests": 1, "per": 10}]}})
    scene.run_all(*(scene.call(f"c{n}", 1) for n in range(4)))  # starts at 0, 10, 20, 30
    found = scene.rm.pressure()
    assert found.rate.some.total_s == pytest.approx(30)
    assert found.rate.full.total_s == pytest.approx(27)  # all but the seconds in which one ran
    assert found.lanes.some.total_s == 0
    lanes, rate = found.pools["default"]
    assert (lanes.some.total_s, rate.some.total_s) == (0, pytest.approx(30))


def test_lanes_that_are_kept_by_the_dead_are_full_pressure() -> None:
    scene = Scene(pools={"default": {"lanes": 1, "zombies": 0}})
    rm = scene.rm

    async def story() -> None:
        stuck = rm.lease(tokens=1).acquire()
        stuck.abandon()
        waiting = asyncio.ensure_future(scene.call("waits", 1))
        await asyncio.sleep(40)
        stuck.release()
        await waiting

    scene.run(story)
    assert rm.pressure().lanes.full.total_s == pytest.approx(40)


def test_a_waiter_that_leaves_takes_its_pressure_with_it() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def story() -> None:
        async with scene.rm.lease(agent="holder"):
            pass
        holder = await scene.rm.lease(agent="holder").acquire_async()
        waiting = asyncio.ensure_future(scene.call("waits", 1))
        await asyncio.sleep(10)
        waiting.cancel()
        await asyncio.sleep(10)
        with pytest.raises(TimeoutError):
            await scene.call("impatient", wait_max=5)
        await asyncio.sleep(10)
        holder.release()

    scene.run(story)
    assert scene.rm.pressure().lanes.some.total_s == pytest.approx(15)


def test_the_whole_is_pressed_while_any_pool_is() -> None:
    scene = Scene(pools={"a": {"lanes": 1}, "b": {"lanes": 1}})
    scene.run_all(
        scene.call("a1", 10, pool="a"), scene.call("a2", 0, pool="a"),
        scene.call("b1", 10, at=5, pool="b"), scene.call("b2", 0, at=5, pool="b"),
    )  # fmt: skip
    found = scene.rm.pressure()
    assert found.lanes.some.total_s == pytest.approx(15)
    assert {name: lanes.some.total_s for name, (lanes, _) in found.pools.items()} == pytest.approx({"a": 10, "b": 10})


def test_context_is_as_it_was_reported() -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, context={"high": 0.8})
    rm.report_context("one", 79, 100)
    rm.report_context("two", 80, 100)
    clock.advance(10)
    rm.report_context("one", 90, 100)
    clock.advance(10)
    rm.report_context("two", None, 100)
    rm.report_context("one", 10, 100)
    clock.advance(10)
    context = rm.pressure().context
    assert (context.some.total_s, context.full.total_s) == (20, 10)


def test_the_note_is_one_line_that_says_what_is_short() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    scene.run_all(scene.call("a", 60), scene.call("b", 0))
    note = scene.rm.pressure().note()
    assert "100% of the last 10 s for a free lane" in note and "\n" not in note
    assert "pace" not in note
    scene.clock.advance(3600)
    assert scene.rm.pressure().note() == ""
