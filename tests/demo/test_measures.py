"""The figures are counted from the records as their descriptions say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrm.demo.measures import bars, figures, silence_s
from tests.demo.records import SCENARIO, a_run, ask, request, taken

KEYS = (
    "person_latency_p50_s", "person_latency_p95_s", "others_latency_p95_s", "answered", "failed", "http_429",
    "hung_calls", "hung_lane_s", "lanes_leaked",
)  # fmt: skip


def test_latency_is_a_measured_value_and_counts_what_got_no_answer_until_the_end() -> None:
    found = figures(a_run())
    assert found.person_latency_p50_s == 10
    assert found.person_latency_p95_s == 28
    assert found.others_latency_p95_s == 5


def test_p95_of_twenty_leaves_out_the_slowest_alone() -> None:
    asks = [ask("assistant", 0, float(n)) for n in range(1, 21)]
    assert figures(taken(asks, [])).person_latency_p95_s == 19


def test_everything_asked_is_either_answered_or_failed() -> None:
    found = figures(a_run())
    assert (found.answered, found.failed) == (3, 6 - 3)
    assert found.failed_refused == 1
    assert found.unfinished == 2, "one question was cut off, and indexer-2 never came to its job"


def test_hung_calls_are_those_that_fell_silent_and_hold_a_lane_from_being_taken_up_to_the_end() -> None:
    found = figures(a_run())
    assert found.hung_calls == 2
    assert found.hung_lane_s == 3 + 5
    assert found.http_429 == 1
    assert found.healthy_given_up == 1


def test_silence_begins_with_the_last_chunk() -> None:
    stalled = request("a", "stalled", 2, 7, first_chunk_s=2.5, chunks_sent=3)
    assert silence_s(stalled, SCENARIO) == pytest.approx(7 - 2.5 - 2 * SCENARIO.gap_s)
    hung = request("a", "hung", 1, 4, first_chunk_s=None, chunks_sent=0)
    assert silence_s(hung, SCENARIO) == 3


def test_what_is_still_open_at_the_end_is_leaked() -> None:
    assert figures(taken([], [], left_open=2)).lanes_leaked == 2


def test_the_json_has_the_promised_keys_with_numbers() -> None:
    found = figures(a_run()).as_json()
    assert all(isinstance(found[key], int | float) for key in KEYS)


def test_bars_are_missed_one_by_one() -> None:
    without = replace(figures(a_run()), person_latency_p95_s=20.0)
    good = replace(without, person_latency_p95_s=4.0, hung_silence_longest_s=1.35, lanes_leaked=0, failed_refused=0)
    assert [bar.met for bar in bars(SCENARIO, without, good)] == [True] * 4
    bad = {"person_latency_p95_s": 4.01, "hung_silence_longest_s": 1.46, "lanes_leaked": 1, "failed_refused": 1}
    for place, (name, value) in enumerate(bad.items()):
        met = [bar.met for bar in bars(SCENARIO, without, replace(good, **{name: value}))]
        assert met == [n != place for n in range(4)], name
