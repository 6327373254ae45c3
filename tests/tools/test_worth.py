"""What environments are for, in small: nobody waits for what can be made ahead, and crashes leave nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.environments import hidden
from benchmarks.environments_storm import left_in, storm


@pytest.mark.parametrize("seed_", [1, 2, 3])
def test_preparation_made_ahead_is_on_nobody_s_way(seed_: int) -> None:
    ahead, demanded = (hidden(24, 16, 2, 30.0, ahead, seed_) for ahead in (True, False))
    assert ahead.awaited_share < 0.1 < 0.9 < demanded.awaited_share
    assert ahead.programs_per_hour > demanded.programs_per_hour


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_after_random_crashes_the_doctor_leaves_nothing_but_what_belongs_to_the_living(tmp_path: Path, seed: int) -> None:
    def doctor() -> str:
        command = [sys.executable, "-m", "agentrm", "doctor", "--environments", str(tmp_path), "--clean"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    result = storm(tmp_path, 40, seed, doctor)
    assert result.programs == 40 and result.control_is_fit
    assert (result.left_after_doctor, result.processes_after_doctor, left_in(tmp_path)) == (0, 0, [])
