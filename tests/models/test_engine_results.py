"""The report of the engine's benchmarks says by itself which bars are met and missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.local_engine.report import ROWS, report


def run(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.local_engine --only x --json /somewhere/x.json", "model": "m", "device": "cpu",
        "card": None, "dtype": "float32", "threads": 2, "threads_asked": None, "cores": 2, "load": 0.4, "torch": "t",
        "priority": "in real time", "transformers": "f", "results": list(results), **more,
    }  # fmt: skip


def rows() -> dict[str, dict[str, Any]]:
    """Every bar just met."""
    return {
        "turn-kv-kept": {"context": 1024, "ratio": 9.0, "spread": "8 to 10", "bar": 9.0, "ratio_disk": 6.0,
                         "spread_disk": "5 to 7", "bar_disk": 6.0},
        "preempted-greedy": {"model": "m", "programs": 64, "bar": 0, "mismatches": 0, "switches": 1, "swapped_in": 1,
                             "snapshots": 1},
        "batch-8": {"lengths": "equal", "ratio": 4.0, "spread": "3 to 5", "bar": 4.0, "ratio_transformers": 0.85,
                    "spread_transformers": "0.8 to 0.9", "bar_transformers": 0.85},
        "contention-16-agents": {"agents": 16, "ratio": 2.1, "p95_ratio": 0.2, "bar": 2.1, "bar_p95": 0.2},
        "memory": {"limit": 10, "peak": 10, "programs": 3, "finished": 3},
    }  # fmt: skip


def told(**changed: Any) -> tuple[str, list[str]]:
    named = [{"name": name, **row, **changed.get(name.replace("-", "_"), {})} for name, row in rows().items()]
    text, missed = report([run(*named)])
    return text, [bar.name for bar in missed]


def test_bars_that_are_just_met_are_met_and_a_gpu_is_not_measured() -> None:
    text, missed = told()
    assert (missed, text.count("| met |"), "missed" in text) == ([], 9, False)
    assert f"On a GPU **not measured**: {', '.join(ROWS)}." in text
    assert "2 of 2 cores, torch's own choice" in text and "/somewhere" not in text


@pytest.mark.parametrize(
    ("row", "changed", "missed"),
    [
        ("turn_kv_kept", {"ratio": 8.99}, "tokens kept"), ("turn_kv_kept", {"ratio_disk": 5.99}, "through the disk"),
        ("preempted_greedy", {"mismatches": 1}, "that differ"), ("batch_8", {"ratio": 3.99}, "equal lengths"),
        ("batch_8", {"ratio_transformers": 0.849}, "against transformers"),
        ("contention_16_agents", {"ratio": 2.09}, "throughput"), ("contention_16_agents", {"p95_ratio": 0.201}, "p95"),
        ("memory", {"peak": 11}, "memory in use"), ("memory", {"finished": 2}, "that finish"),
    ],
)  # fmt: skip
def test_a_bar_that_is_just_missed_is_missed(row: str, changed: dict[str, Any], missed: str) -> None:
    text, names = told(**{row: changed})
    assert len(names) == 1 and missed in names[0] and text.count("**missed**") == 1


def test_a_row_that_says_that_it_failed_misses_its_bars() -> None:
    text, names = told(preempted_greedy={"failed": "nobody was preempted"})
    assert len(names) == 1 and "**missed**: nobody was preempted" in text


def test_a_row_without_a_bar_has_none() -> None:
    text, names = told(batch_8={"bar_transformers": None, "ratio_transformers": 0.1})
    assert not names and "against transformers" not in text.partition("###")[0]
