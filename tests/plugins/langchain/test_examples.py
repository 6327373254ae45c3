"""The examples run, against a loopback provider, as a user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.context.sessions import SessionStore
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(name: str, provider: StubProvider, *words: str, folder: Path | None = None) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "none-needed"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    mine = {path.name for path in EXAMPLES.glob("langchain_*.py")}
    assert mine == {"langchain_priority.py", "langchain_graph.py", "langchain_trip.py"}


@pytest.mark.slow
def test_the_person_does_not_wait_for_the_background() -> None:
    with StubProvider(Behaviour(service_s=0.1)) as provider:
        words = run("langchain_priority.py", provider).split()
        assert provider.peak_concurrency <= 2
    person, last = (float(word) for word in words if word.replace(".", "").isdigit())
    assert person < last / 2


def test_the_graph_calls_its_tool_through_the_gate() -> None:
    def plan(request: StubRequest) -> Behaviour:
        return Behaviour(tool_calls=(ToolCall("population", {"city": "Oslo"}),), text="0.7 million")

    with StubProvider(plan) as provider:
        out = run("langchain_graph.py", provider)
    assert "0.7 million" in out
    assert "{'default': (2, 0), 'tools': (1, 0)}" in out


def test_a_trip_whose_plan_changes_keeps_what_was_booked_and_books_it_once(tmp_path: Path) -> None:
    def model(request: StubRequest) -> Behaviour:
        """Follows the newest plan as far as the messages show it undone: what was forgotten would be booked again."""
        said = " ".join(str(message.get("content")) for message in request.messages)
        booked = sorted(set(re.findall(r"booked: (?:flight to|hotel in) [A-Z]\w+", said)))
        calls: tuple[ToolCall, ...] = ()
        if not booked:
            calls = (ToolCall("book_flight", {"city": "Oslo"}),)
        elif len(booked) == 1 and "Bergen" in said:
            calls = (ToolCall("book_hotel", {"city": "Bergen"}),)
        return Behaviour(tool_calls=calls, text=", ".join(booked))

    with StubProvider(model, strict_pairs=True) as provider:
        first = run("langchain_trip.py", provider, "A flight to Oslo, then a hotel and a museum.", folder=tmp_path)
        assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\n"
        second = run("langchain_trip.py", provider, "Keep the flight, but sleep in Bergen.", folder=tmp_path)
        assert {record.outcome for record in provider.log} == {"answered"}
    assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\nhotel in Bergen\n"
    assert ("booked: flight" in first, "booked: flight" in second, "booked: hotel" in second) == (True, False, True)
    with SessionStore(tmp_path / "trips") as sessions, sessions.restore("trip") as session:
        texts = [message.text for message in session.messages()]
    assert any("museum" in text for text in texts)
    assert any("booked: hotel in Bergen" in text for text in texts)
