"""The examples, run as a user would run them, in processes of their own against a loopback provider; and the model of
those that plan a trip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agentrm.context.sessions import SessionStore
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

__all__ = ["EXAMPLES", "begin", "changes_half_way", "run", "trip_model"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 300
FIRST_PLAN, SECOND_PLAN = "A flight to Oslo, then a hotel and a museum there.", "Keep the flight, but sleep in Bergen."


def begin(name: str, provider: StubProvider, folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "HOME": str(folder),
        "OPENAI_BASE_URL": provider.base_url,
        "OPENAI_API_KEY": "none-needed",
    }
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(name: str, provider: StubProvider, folder: Path, *words: str, ends_with: int = 0) -> str:
    """What it prints; `ends_with` is the exit status that it has to end with."""
    begun = begin(name, provider, folder, *words)
    out, errors = begun.communicate(timeout=PATIENCE_S)
    assert begun.returncode == ends_with, errors
    return out + errors


def trip_model(request: StubRequest) -> Behaviour:
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


def changes_half_way(example: str, folder: Path) -> None:
    """Checks that a trip whose plan changes keeps what was booked, and books it once."""
    bookings = folder / "bookings.txt"
    with StubProvider(trip_model, strict_pairs=True) as provider:
        first = run(example, provider, folder, FIRST_PLAN)
        assert bookings.read_text() == "flight to Oslo\n"
        asked = len(provider.log)
        second = run(example, provider, folder, SECOND_PLAN)
        assert {record.outcome for record in provider.log} == {"answered"}
        assert len(provider.log) > asked
        assert provider.peak_concurrency <= 2
    assert bookings.read_text() == "flight to Oslo\nhotel in Bergen\n"
    assert ("booked: flight" in first, "booked: flight" in second, "booked: hotel" in second) == (True, False, True)
    with SessionStore(folder / "trips") as sessions, sessions.restore("trip") as session:
        texts = [message.text for message in session.messages()]
    assert any("museum" in text for text in texts)
    assert any("booked: hotel in Bergen" in text for text in texts)
