"""Area a: lanes and the feedback queue. One test for each report."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrm import AdmissionError, QueueTimeout, RunTimeout, adapters
from tests.reports.stub import Provider, Refused
from tests.scheduling.driver import Scene

ONE = {"default": {"lanes": 1}}


@pytest.mark.parametrize("arrives", [0.5, 38, 39.999, 100])
def test_r01_a_person_waits_for_one_step_of_a_chore_at_most(arrives: float) -> None:
    scene = Scene(pools=ONE)

    async def chore() -> int:
        for step in range(6):
            await scene.call(f"B{step}", 40, agent="chore", priority="background")
        return 6

    done, _ = scene.run_all(chore(), scene.call("I", 5, at=arrives, agent="person"))
    assert done == 6
    assert scene.start_of("I") == 40 * (arrives // 40 + 1)
    scene.at_rest()


def test_r03_age_lifts_by_one_level_and_never_reaches_a_person() -> None:
    """The report breaks ties by class before age. Here the rule decides: what is older goes first among equals, so
    the order of the two old ones is that of their arrival; a person comes before both and the fresh one after both."""
    scene = Scene(pools=ONE)
    calls = [
        scene.call("busy", 32),
        scene.call("old normal", 1, at=0.1, priority="subagent"),
        scene.call("old background", 1, at=0.2, priority="background"),
        scene.call("fresh normal", 1, at=31, priority="subagent"),
        scene.call("interactive", 1, at=31.5, priority="interactive"),
    ]
    scene.run_all(*calls)
    assert scene.order[1:] == ["interactive", "old normal", "old background", "fresh normal"]


def test_r03_background_work_is_picked_in_bounded_time_under_a_stream_of_normal_work() -> None:
    scene = Scene(pools=ONE)
    normal = [scene.call(f"n{i}", 1, at=0.9 * i, priority="subagent") for i in range(200)]
    scene.run_all(scene.call("old", 1, at=0.5, priority="background"), *normal)
    assert scene.start_of("old") <= 60


def test_r03_no_age_passes_interactive_work() -> None:
    scene = Scene(pools=ONE, scheduling={"quanta_s": [float("inf")] * 3, "quanta_tokens": [float("inf")] * 3})
    people = [scene.call(f"p{i}", 1, at=0.9 * i, priority="interactive") for i in range(300)]
    scene.run_all(scene.call("busy", 1), scene.call("old", 1, at=0.5, priority="background"), *people)
    assert scene.order[-1] == "old"


def test_r05_an_interrupted_call_goes_before_those_that_never_ran() -> None:
    """Nothing is preempted here, so there is no victim to choose; what a provider interrupts comes back ahead of
    unstarted work of its level, and only as often as the pool's attempts allow, so that the others do not starve."""
    scene = Scene(pools={"default": {"lanes": 1, "retry": {"attempts": 4}}})
    provider = Provider(scene.clock, script=[Refused(503)] * 10)

    async def call(name: str, at: float) -> Any:
        await asyncio.sleep(at)

        async def send() -> str:
            scene.started.append((name, scene.now))
            return await provider.answer(name)

        return await adapters.acall(scene.rm, adapters.CallSpec(agent=name), send)

    async def steady(name: str, at: float) -> str:
        return await scene.call(name, 2, at=at, agent=name)

    results = scene.run_all(call("A", 0), *(steady(f"B{i}", 0.1) for i in range(6)))
    assert isinstance(results[0], Refused) and results[1:] == [f"B{i}" for i in range(6)]
    assert scene.order.count("A") == 4
    places = [i for i, name in enumerate(scene.order) if name == "A"]
    assert places[1] <= 2, "A came back before those B that had not started when its pause was over"
    scene.at_rest()


def test_r05_resumed_work_is_picked_first_within_its_level_only() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = await scene.rm.lease(agent="A").acquire_async()
        calls = [
            asyncio.ensure_future(scene.call(name, 1, priority=priority, resumed=resumed))
            for name, priority, resumed in (
                ("B", "subagent", False), ("C", "background", True), ("A", "subagent", True), ("P", "interactive", False),
            )
        ]  # fmt: skip
        await asyncio.sleep(2)
        holder.release()
        await asyncio.gather(*calls)

    scene.run(all_)
    assert scene.order == ["P", "A", "B", "C"]


def test_r07_a_healthy_backend_is_not_room() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        low = [asyncio.ensure_future(scene.call(f"low{i}", 1, priority="background")) for i in range(10)]
        await asyncio.sleep(0.5)
        high = asyncio.ensure_future(scene.call("high", 1, priority="interactive"))
        await asyncio.sleep(0)
        assert scene.rm.statistics().waiting == 10
        await asyncio.gather(high, *low)

    scene.run(all_)
    assert scene.order[:2] == ["low0", "high"] and scene.most_inside == 1


def test_r08_a_job_slower_than_its_period_does_not_pile_up() -> None:
    scene = Scene(pools=ONE)
    job = scene.rm.job("digest")
    most_waiting = 0

    async def fire() -> None:
        async with job.turn():
            for step in range(7):
                await scene.call(f"step{step}", 60, agent="digest", priority="background")

    async def cron() -> None:
        nonlocal most_waiting
        firings = []
        for _ in range(12):
            firings.append(asyncio.ensure_future(fire()))
            await asyncio.sleep(1)
            most_waiting = max(most_waiting, job.waiting)
            await asyncio.sleep(299)
        results = await asyncio.gather(*firings, return_exceptions=True)
        assert all(x is None or isinstance(x, AdmissionError) for x in results)

    scene.run_all(cron(), scene.call("person", 5, at=1801))
    assert most_waiting == 1
    assert scene.start_of("person") <= 1801 + 60
    assert job.fired == 12 and job.skipped == 12 - job.ran > 0
    assert (scene.rm.job("digest").skipped, job.running, job.waiting) == (job.skipped, False, 0)
    scene.at_rest()


def test_r09_waiting_and_running_have_budgets_of_their_own() -> None:
    limits = {"wait_max": 30, "run_s": 600, "idle_s": float("inf")}
    scene = Scene(pools=ONE)
    _, result = scene.run_all(scene.call("busy", 20), scene.call("call", 599, **limits))
    assert result == "call" and scene.start_of("call") == 20

    scene = Scene(pools=ONE)
    _, result = scene.run_all(scene.call("busy", 20), scene.call("call", 1000, **limits))
    assert isinstance(result, RunTimeout) and 620 <= dict(scene.ended)["call"] <= 621

    scene = Scene(pools=ONE)
    provider = Provider(scene.clock)
    told: list[tuple[type, float]] = []

    async def call() -> None:
        try:
            await adapters.acall(scene.rm, adapters.CallSpec(agent="call", wait_max=30, run_s=600), provider.answer)
        except TimeoutError as error:
            assert "queue wait" in str(error) and "run limit" not in str(error)
            told.append((type(error), scene.now))

    scene.run_all(scene.call("busy", 40), call())
    assert told == [(QueueTimeout, 30)] and provider.seen == []


@pytest.mark.parametrize(("cap", "depth", "breadth"), [(1, 1, 1), (2, 3, 1), (2, 1, 5), (1, 3, 3), (3, 4, 2)])
def test_r11_a_parent_that_waits_for_its_children_lends_them_its_lane(cap: int, depth: int, breadth: int) -> None:
    scene = Scene(pools={"default": {"lanes": cap}})
    working = most = finished = 0

    async def node(level: int) -> None:
        nonlocal working, most, finished
        async with scene.rm.lease(agent=f"level{level}"):
            working += 1
            most = max(most, working)
            await asyncio.sleep(1)
            working -= 1
            if level < depth:
                await asyncio.gather(*(node(level + 1) for _ in range(breadth)))
        finished += 1

    scene.run(lambda: node(0), longest_s=1000)
    assert finished == sum(breadth**i for i in range(depth + 1)) and most <= cap
    scene.at_rest()
