"""Policies by name: the built-in ones, `auto`, and a user's own."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager, VirtualClock
from agentrm.scheduling.policies import Auto, Place, Request, Sight, Usage
from tests.scheduling.driver import run

CALLS = [("a", "background", 300), ("a", "background", 200), ("b", "subagent", 100), ("c", "interactive", 50)]


def order(policy: str, calls: list[tuple[str, str, int]] = CALLS) -> list[str]:
    """In which order calls that arrive behind a busy lane run."""
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, pools={"default": {"lanes": 1}}, scheduling={"policy": policy})
    ran: list[str] = []

    async def one(agent: str, priority: Any, tokens: int) -> None:
        async with rm.lease(agent=agent, priority=priority, tokens=tokens):
            ran.append(f"{agent}{tokens}")
            await asyncio.sleep(1)

    async def main() -> None:
        first = await rm.lease(agent="first").acquire_async()
        tasks = [asyncio.create_task(one(*c)) for c in calls]
        await asyncio.sleep(0.5)
        first.release()
        await asyncio.gather(*tasks)

    run(clock, main)
    rm.kernel.check()
    return ran


def test_the_built_in_orders() -> None:
    assert order("fifo") == ["a300", "a200", "b100", "c50"]
    assert order("priority") == ["c50", "b100", "a300", "a200"]
    assert order("mlfq") == ["c50", "b100", "a300", "a200"]
    assert order("rr") == ["a300", "b100", "c50", "a200"]
    assert order("drf") == ["a300", "b100", "c50", "a200"]


def test_round_robin_gives_equal_agents_turns_within_one() -> None:
    ran = order("rr", [(f"agent{i % 5}", "background", 10 * (i % 5) + i) for i in range(50)])
    seen = {f"agent{i}": 0 for i in range(5)}
    for name in ran:
        seen[name[:6]] += 1
        assert max(seen.values()) - min(seen.values()) <= 1


class Shortest:
    name = "shortest"

    def place(self, request: Request, state: object) -> Place:
        return Place(0, request.tokens)

    def used(self, state: object, usage: Usage) -> object:
        return (state or 0.0) + usage.lane_s  # type: ignore[operator]


class Outside:
    name = "outside"

    def place(self, request: Request, state: object) -> Place:
        return Place(3, 0)

    def used(self, state: object, usage: Usage) -> object:
        return state


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("shortest", f"{__name__}:Shortest", "agentrm.policies"),
        EntryPoint("outside", f"{__name__}:Outside", "agentrm.policies"),
        EntryPoint("broken", "no.such.module:Policy", "agentrm.policies"),
    ]

    def entry_points(group: str) -> EntryPoints:
        return EntryPoints(p for p in points if p.group == group)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)  # which names the configuration allows
    monkeypatch.setattr("agentrm.extensions.entry_points", entry_points)
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_a_custom_policy_is_found_by_name_and_decides(installed: None) -> None:
    assert order("shortest") == ["c50", "b100", "a200", "a300"]


def test_a_custom_policy_that_places_a_call_nowhere_is_told(installed: None) -> None:
    rm = ResourceManager(scheduling={"policy": "outside"})
    with pytest.raises(Exception, match="level must be 0 to 2"), rm.lease():
        pass


def test_a_policy_that_cannot_be_loaded_is_refused_at_construction(installed: None) -> None:
    with pytest.raises(ConfigError, match="broken"):
        ResourceManager(scheduling={"policy": "broken"})
    with pytest.raises(ConfigError, match="scheduling.policy"):
        ResourceManager(scheduling={"policy": "shortes"})


def test_auto_orders_by_class_from_the_first_call_that_waits() -> None:
    assert order("auto") == order("mlfq")
    assert order("auto", [CALLS[3], *CALLS])[0] == "c50"


def test_auto_says_what_it_chose_and_why() -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, pools={"default": {"lanes": 1}}, scheduling={"policy": "auto"})
    assert rm.statistics().pools["default"].policy == "fifo"

    async def main() -> None:
        held = await rm.lease(agent="x", priority="background").acquire_async()
        task = asyncio.create_task(rm.lease(agent="person", priority="interactive").acquire_async())
        await asyncio.sleep(0.1)
        seen = rm.statistics().pools["default"]
        assert seen.policy == "mlfq"
        assert "interactive" in seen.policy_why
        held.release()
        (await task).release()

    run(clock, main)


def test_auto_does_not_flap() -> None:
    auto, seen = Auto(), []
    quiet, equal, other = Sight(0, 0, 0, 0), Sight(0, 20, 5, 4), Sight(0, 20, 2, 15)
    for look in [equal, other] * 10 + [quiet, equal] * 10:
        seen.append(auto.look(look).policy)
    assert set(seen) == {"mlfq"}
    for _ in range(3):
        auto.look(equal)
    assert auto.choice.policy == "rr"
    auto.look(Sight(1, 20, 5, 4))
    assert auto.choice.policy == "mlfq"
    for _ in range(Auto.INTERACTIVE_LOOKS - 1):
        assert auto.look(equal).policy == "mlfq", "forgot that somebody waited interactively"
    for _ in range(3):
        auto.look(equal)
    assert auto.choice.policy == "rr"
    for _ in range(3):
        auto.look(quiet)
    assert auto.choice.policy == "fifo"


def test_the_simulator_runs_under_every_kernel_policy_of_that_name() -> None:
    from agentrm.simulation.scheduling import POLICIES

    assert {p.kernel for p in POLICIES.values()} == {"fifo", "rr", "priority", "mlfq", "drf", "custom"}
