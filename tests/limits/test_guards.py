"""Guards: what counts as a circle and what does not, how many agents may be started, how many steps made."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager, current_identity
from agentrm.limits.errors import LoopDetected, SpawnRefused, StepLimit
from agentrm.limits.guards import Call, Guards


@pytest.fixture
def rm() -> ResourceManager:
    return ResourceManager()


def make(guards: Guards, result: Any, name: str = "f", arguments: Any = None, agent: str = "a") -> str | None:
    call = Call(name, arguments, agent)
    guards.before(call)
    return guards.after(call, result)


def test_the_same_call_with_the_same_result_is_warned_about_then_stopped(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=3)
    assert [make(guards, "same", arguments={"x": 1}) for _ in range(2)] == [None, None]
    warning = make(guards, "same", arguments={"x": 1})
    assert warning is not None and "'a' made f 3 times" in warning
    with pytest.raises(LoopDetected) as caught:
        make(guards, "same", arguments={"x": 1})
    assert caught.value.agent == "a" and caught.value.cycle == (("a", "f"),) and caught.value.repeats == 3
    assert [event.kind for event in guards.events] == ["warning", "loop"]


def test_another_call_gives_the_agent_a_way_out(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=2)
    assert [make(guards, "same") for _ in range(2)][1] is not None
    assert make(guards, "other", "g") is None
    assert make(guards, "same") is None  # it may ask again, and is warned again
    assert make(guards, "same") is not None


@pytest.mark.parametrize(
    "first,second",
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), (json.dumps({"a": 1, "b": 2}), {"b": 2, "a": 1}), ([1, 2], (1, 2))],
)
def test_arguments_are_compared_by_what_they_say(rm: ResourceManager, first: Any, second: Any) -> None:
    guards = rm.guard(repeat=2)
    make(guards, "same", arguments=first)
    assert make(guards, "same", arguments=second) is not None


class _Silent:
    def __repr__(self) -> str:
        raise LookupError("nothing to show")


def _endless() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def _deep() -> Any:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("made", [_endless, _deep, _Silent, object, lambda: 10**6000, lambda: {_Silent(): 1}])
def test_what_cannot_be_read_costs_no_call_and_is_like_nothing_else(rm: ResourceManager, made: Any) -> None:
    guards = rm.guard(repeat=2)
    assert [make(guards, made(), arguments=made()) for _ in range(5)] == [None] * 5
    assert [make(guards, made()) for _ in range(5)] == [None] * 5, "results that can't be read may be progress"


def test_text_that_is_no_json_for_all_its_brackets_is_text(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=2)
    assert [make(guards, "[" * 100_000) for _ in range(2)][1] is not None


@pytest.mark.parametrize("length", [2, 3, 4])
def test_circles_of_several_calls_are_found(rm: ResourceManager, length: int) -> None:
    guards = rm.guard(repeat=3)
    with pytest.raises(LoopDetected) as caught:
        for n in range(100):
            make(guards, f"result {n % length}", f"tool{n % length}")
    assert n == 3 * length
    assert len(caught.value.cycle) == length


def test_tests_between_edits_are_no_circle(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=3)
    for n in range(20):
        assert make(guards, "ok", "edit", {"line": n}) is None
        assert make(guards, "1 failed", "run_tests") is None


def test_two_agents_that_pass_the_ball_are_both_stopped(rm: ResourceManager) -> None:
    guards = rm.guard(agent="root", repeat=3)
    with pytest.raises(LoopDetected, match="'x' and 'y' go back and forth") as caught:
        for n in range(100):
            make(guards, "please do it", "handoff", {"to": "yx"[n % 2]}, agent="xy"[n % 2])
    assert n == 6
    with pytest.raises(LoopDetected):
        make(guards, "please do it", "handoff", {"to": "x"}, agent="y")
    assert {agent for agent, _ in caught.value.cycle} == {"x", "y"}


def test_agents_side_by_side_do_not_hide_each_others_circles(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=5)
    with pytest.raises(LoopDetected) as caught:
        for n in range(100):
            make(guards, n, "work", n, agent="busy")
            make(guards, "same", agent="stuck")
            make(guards, n, "work", n, agent=f"other{n % 3}")
    assert n == 5 and caught.value.agent == "stuck"


def test_without_repeat_nothing_is_watched(rm: ResourceManager) -> None:
    guards = rm.guard(repeat=None)
    assert {make(guards, "same") for _ in range(100)} == {None}


def test_the_event_names_the_parent_to_be_told(rm: ResourceManager) -> None:
    seen: list[tuple[str, str, str | None]] = []
    guards = rm.guard(agent="boss", repeat=2, on_event=lambda e: seen.append((e.kind, e.agent, e.parent)))
    with guards.child("middle"), guards.child("low"):
        make(guards, "same", agent="low")
        make(guards, "same", agent="low")
    assert seen == [("warning", "low", "middle")]


def test_children_carry_their_identity_and_count_to_those_above(rm: ResourceManager) -> None:
    rm = ResourceManager(budgets={"agent.boss": {"calls": 10}, "agent.middle": {"calls": 10}})
    guards = rm.guard(agent="boss")
    with guards.child("middle"):
        assert current_identity().agent == "middle"
        with guards.child("low"), rm.lease(tokens=1) as lease:
            assert lease.agent == "low"
    with rm.lease(tokens=1, agent="boss"):
        pass
    spent = {name: found.spent["calls"] for name, found in rm.statistics().budgets.items()}
    assert spent == {"agent.boss": 2, "agent.middle": 1}


def test_depth_live_and_total_are_bounds_below_the_root(rm: ResourceManager) -> None:
    guards = rm.guard(agent="root", depth=2, live=2, total=3)
    with guards.child("a"):
        with guards.child("b"):
            with pytest.raises(SpawnRefused, match="2 deep") as caught, guards.child("c"):
                pass
            assert (caught.value.limit, caught.value.agent, caught.value.is_retryable) == ("depth", "b", False)
        with guards.child("b2"):
            pass
        with pytest.raises(SpawnRefused, match="3 helpers may be started in all"), guards.child("b3"):
            pass
    assert (guards.live, guards.total) == (0, 3)

    guards = rm.guard(live=1)
    with guards.child("a"), pytest.raises(SpawnRefused) as caught, guards.child("b"):
        pass
    assert caught.value.is_retryable
    with guards.child("c"):
        pass


def test_the_line_survives_tasks_threads_and_lost_contexts(rm: ResourceManager) -> None:
    guards = rm.guard(depth=2)

    async def story() -> None:
        with guards.child("a") as a:

            async def below() -> int:
                with guards.child("b") as b:
                    return b.depth

            assert await asyncio.gather(*(asyncio.create_task(below()) for _ in range(3))) == [2, 2, 2]
            assert await asyncio.to_thread(lambda: _depth(guards)) == 2
            found: list[int] = []
            lost = threading.Thread(target=lambda: contextvars.Context().run(lambda: found.append(_depth(guards, a))))
            lost.start()
            await asyncio.to_thread(lost.join)
            assert found == [2]

    asyncio.run(story())
    assert guards.live == 0


def _depth(guards: Guards, parent: Any = None) -> int:
    with guards.child("x", parent=parent) as kin:
        return kin.depth


def test_live_children_are_bounded_over_threads(rm: ResourceManager) -> None:
    guards = rm.guard(live=5)
    start, most, refused = threading.Barrier(30), [0], [0]

    def work() -> None:
        start.wait()
        try:
            with guards.child("x"):
                most[0] = max(most[0], guards.live)
        except SpawnRefused:
            refused[0] += 1

    threads = [threading.Thread(target=work) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 5 and guards.live == 0


def test_steps_end_when_the_loop_is_left(rm: ResourceManager) -> None:
    steps = rm.guard().steps(5)
    for step in steps:
        step.record(f"work {step.number}")
        if step.number == 3:
            break
    assert (steps.made, steps.status, steps.transcript) == (3, "running", ("work 1", "work 2", "work 3"))


def test_steps_beyond_the_limit_raise_with_the_work_so_far(rm: ResourceManager) -> None:
    guards = rm.guard(agent="a")
    with pytest.raises(StepLimit, match="5 steps") as caught:
        for step in guards.steps(5):
            step.record(step.number)
    assert caught.value.transcript == (1, 2, 3, 4, 5)
    assert [event.kind for event in guards.events] == ["steps"]


@pytest.mark.parametrize(
    "limits", [{"repeat": 1}, {"repeat": 0}, {"depth": -1}, {"live": 1.5}, {"total": True}], ids=str
)
def test_limits_that_cannot_be_meant_are_refused(rm: ResourceManager, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        rm.guard(**limits)
    with pytest.raises(ConfigError):
        rm.guard().steps(0)
