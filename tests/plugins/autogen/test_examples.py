"""The example runs, against a loopback provider, as a user would run it: in processes of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("autogen_agentchat")
pytest.importorskip("autogen_ext.models.openai")

from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest
from tests.plugins.trips import EXAMPLES, PATIENCE_S, begin, changes_half_way, run, trip_model


def test_every_example_is_run_here() -> None:
    assert [path.name for path in EXAMPLES.glob("autogen_*.py")] == ["autogen_trip.py"]


def test_a_trip_whose_plan_changes_keeps_what_was_booked_and_books_it_once(tmp_path: Path) -> None:
    changes_half_way("autogen_trip.py", tmp_path)


def test_a_trip_that_is_killed_after_its_first_booking_goes_on_and_books_it_once(tmp_path: Path) -> None:
    plan, lives = "A flight to Oslo, then a hotel in Bergen.", list[subprocess.Popen[str]]()

    def model(request: StubRequest) -> Behaviour:
        if "booked: flight" in str(request.messages):
            lives[0].kill()  # the second life can't reach it any more
        return trip_model(request)

    with StubProvider(model, strict_pairs=True) as provider:
        lives.append(begin("autogen_trip.py", provider, tmp_path, plan))
        lives[0].communicate(timeout=PATIENCE_S)
        assert lives[0].returncode == -signal.SIGKILL
        assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\n"
        run("autogen_trip.py", provider, tmp_path, plan)
    assert (tmp_path / "bookings.txt").read_text() == "flight to Oslo\nhotel in Bergen\n"
