"""The example runs, against a loopback provider, as a user would run it: in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("autogen_agentchat")
pytest.importorskip("autogen_ext.models.openai")

from agentrm.context.sessions import SessionStore
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _model(request: StubRequest) -> Behaviour:
    """Follows the newest plan as far as the messages show it undone: what was forgotten would be booked again."""
    said = " ".join(str(message.get("content")) for message in request.messages)
    booked = sorted(set(re.findall(r"booked: (?:flight to|hotel in) [A-Z]\w+", said)))
    if "Say what is to be booked" in said:
        return Behaviour(text="DONE" if len(booked) == 2 else "Go on.")
    calls: tuple[ToolCall, ...] = ()
    if not booked:
        calls = (ToolCall("book_flight", {"city": "Oslo"}),)
    elif len(booked) == 1 and "Bergen" in said:
        calls = (ToolCall("book_hotel", {"city": "Bergen"}),)
    return Behaviour(tool_calls=calls, text=", ".join(booked))


def _run(plan: str, provider: StubProvider, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "autogen_trip.py"), plan],
        env={**os.environ, "OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "none-needed"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert [path.name for path in EXAMPLES.glob("autogen_*.py")] == ["autogen_trip.py"]


def test_a_trip_whose_plan_changes_keeps_what_was_booked_and_books_it_once(tmp_path: Path) -> None:
    with StubProvider(_model, strict_pairs=True) as provider:
        first = _run("A flight to Oslo, then a hotel and a museum there.", provider, tmp_path)
        assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\n"
        asked = len(provider.log)
        second = _run("Keep the flight, but sleep in Bergen. No museum.", provider, tmp_path)
        assert {record.outcome for record in provider.log} == {"answered"}
        assert len(provider.log) > asked
        assert provider.peak_concurrency <= 2
    assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\nhotel in Bergen\n"
    assert ("booked: flight" in first, "booked: flight" in second, "booked: hotel" in second) == (True, False, True)
    with SessionStore(tmp_path / "trips") as sessions, sessions.restore("trip") as session:
        texts = [message.text for message in session.messages()]
    assert any("museum there" in text for text in texts)
    assert any("booked: hotel in Bergen" in text for text in texts)
