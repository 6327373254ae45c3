"""The examples run, against a loopback provider, as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ORDERS = {"flight": "flight to Oslo", "room": "room in Oslo", "guided walk": "walk", "museum": "museum"}


def clerk(request: StubRequest) -> Behaviour:
    """Books what the newest task says."""
    task = next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")
    what = next(order for word, order in ORDERS.items() if word in task.partition("context")[0])
    return Behaviour(tool_calls=(ToolCall("book", {"what": what}),), text=f"Done: {what}.")


def run(name: str, provider: StubProvider, folder: Path) -> str:
    environment = {
        **os.environ,
        "HOME": str(folder),
        "OPENAI_BASE_URL": provider.base_url,
        "OPENAI_API_KEY": "none-needed",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("crewai_*.py")} == {"crewai_trip.py"}


def test_the_trip_goes_on_with_a_changed_plan_and_nothing_is_booked_twice(tmp_path: Path) -> None:
    with StubProvider(clerk) as provider:
        first = run("crewai_trip.py", provider, tmp_path)
        assert "the first day is over" in first, first
        booked = tmp_path / "trip" / "booked.txt"
        assert booked.read_text().splitlines() == ["flight to Oslo", "room in Oslo"]
        second = run("crewai_trip.py", provider, tmp_path)
        asked = provider.statistics().arrived
    assert booked.read_text().splitlines() == ["flight to Oslo", "room in Oslo", "walk"], second
    assert "Done: walk." in second
    assert asked == 8, "the first task was not done again"
