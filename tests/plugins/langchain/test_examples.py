"""The examples run, against a loopback provider, as a user would run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall
from tests.plugins.trips import EXAMPLES, changes_half_way, run


def test_every_example_is_run_here() -> None:
    mine = {path.name for path in EXAMPLES.glob("langchain_*.py")}
    assert mine == {"langchain_priority.py", "langchain_graph.py", "langchain_trip.py"}


@pytest.mark.slow
def test_the_person_does_not_wait_for_the_background(tmp_path: Path) -> None:
    with StubProvider(Behaviour(service_s=0.1)) as provider:
        words = run("langchain_priority.py", provider, tmp_path).split()
        assert provider.peak_concurrency <= 2
    person, last = (float(word) for word in words if word.replace(".", "").isdigit())
    assert person < last / 2


def test_the_graph_calls_its_tool_through_the_gate(tmp_path: Path) -> None:
    def plan(request: StubRequest) -> Behaviour:
        return Behaviour(tool_calls=(ToolCall("population", {"city": "Oslo"}),), text="0.7 million")

    with StubProvider(plan) as provider:
        out = run("langchain_graph.py", provider, tmp_path)
    assert "0.7 million" in out
    assert "{'default': (2, 0), 'tools': (1, 0)}" in out


def test_a_trip_whose_plan_changes_keeps_what_was_booked_and_books_it_once(tmp_path: Path) -> None:
    changes_half_way("langchain_trip.py", tmp_path)
