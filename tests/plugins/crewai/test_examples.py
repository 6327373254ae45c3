"""The examples run, against a loopback provider, as a user would run them."""

from __future__ import annotations

from pathlib import Path

from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall
from tests.plugins.trips import EXAMPLES, run

ORDERS = {"flight": "flight to Oslo", "room": "room in Oslo", "guided walk": "walk", "museum": "museum"}


def clerk(request: StubRequest) -> Behaviour:
    """Books what the newest task says."""
    task = next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")
    what = next(order for word, order in ORDERS.items() if word in task.partition("context")[0])
    return Behaviour(tool_calls=(ToolCall("book", {"what": what}),), text=f"Done: {what}.")


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("crewai_*.py")} == {"crewai_trip.py"}


def test_the_trip_goes_on_with_a_changed_plan_and_nothing_is_booked_twice(tmp_path: Path) -> None:
    with StubProvider(clerk) as provider:
        first = run("crewai_trip.py", provider, tmp_path, ends_with=1)
        assert "the first day is over" in first, first
        booked = tmp_path / "trip" / "booked.txt"
        assert booked.read_text().splitlines() == ["flight to Oslo", "room in Oslo"]
        second = run("crewai_trip.py", provider, tmp_path)
        asked = provider.statistics().arrived
    assert booked.read_text().splitlines() == ["flight to Oslo", "room in Oslo", "walk"], second
    assert "Done: walk." in second
    assert asked == 8, "the first task was not done again"
