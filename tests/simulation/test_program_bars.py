"""The table of bars in the results of programs says what was missed, and what could not have been had."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.programs import Bar, against, bar_rows, equal_shares


def row(policy: str, steps: float, p99: float, held: float) -> dict[str, Any]:
    return {"policy": policy, "admit": 60, "steps_per_min": steps, "p99_slowdown": p99, "held_large_over_small": held}


def test_a_missed_bar_is_printed_as_missed_with_what_was_found_and_with_the_limit_if_there_is_one() -> None:
    bars = [Bar("a", "1.0", True), Bar("b", "0.9", False), Bar("c", "0.8", False, "at most 0.85")]
    assert bar_rows(bars) == [["a", "met", "1.0"], ["b", "**missed**", "0.9"], ["c", "**missed**: at most 0.85", "0.8"]]


@pytest.mark.parametrize(("theirs", "limit"), [(9.0, False), (4.5, True)])
def test_a_tail_below_what_equal_shares_give_is_missed_and_says_so(theirs: float, limit: bool) -> None:
    rows = [row("agentrm", 300, 3.1, 3.5), row("thunderagent-code", 300, theirs, 9.0), row("cap", 200, 5.0, 1.0)]
    alone = 10.0
    assert equal_shares(rows, alone) == pytest.approx(60 * alone / 300)
    bars: list[Bar] = []
    against(rows, "fleet", False, alone, bars)
    steps, capped, tail, large = bars
    assert steps.met and capped.met and not large.met
    assert not tail.met
    assert bool(tail.limit) is limit
    assert ("2.00 times" in tail.limit) is limit
