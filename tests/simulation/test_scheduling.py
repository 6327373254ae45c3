"""The simulated scheduler lands on the paper's tables, and ours on what it promises beside them."""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path

import pytest

from agentrm.cli.main import main
from agentrm.simulation.metrics import METRICS, classes_of, measure, percentile
from agentrm.simulation.scheduling import POLICIES, Outcome, simulate
from agentrm.simulation.workload import SCENARIOS, Turn, WorkloadError, generate, read_file, write_file

SEEDS = range(20)

# "AgentRM" (arXiv 2603.13110), tables II to V: P95 s, throughput per minute, lane waste s, zombies, recovered
PRINTED = {
    ("high", "fifo"): (640.4, 14.6, 2272, 29, 0),
    ("high", "paper"): (323.0, 24.5, 140, 7, 22),
    ("burst", "fifo"): (50.4, 31.8, 34, 1, 0),
    ("burst", "paper"): (47.1, 31.9, 0, 0, 2),
    ("faulty", "fifo"): (562.8, 4.1, 2441, 20, 0),
    ("faulty", "paper"): (77.5, 11.0, 97, 5, 15),
    ("cascade", "fifo"): (90.2, 13.0, 996, 15, 0),
    ("cascade", "paper"): (None, 14.4, 80, 4, 21),  # its P95 of 43 s does not follow from the paper's text
}


@cache
def runs(scenario: str, policy: str, tail: float = 0.0) -> tuple[tuple[Outcome, ...], ...]:
    lanes = SCENARIOS[scenario].lanes
    return tuple(tuple(simulate(POLICIES[policy], lanes, generate(scenario, s, tail=tail))) for s in SEEDS)


def median(scenario: str, policy: str, metric: str, klass: str = "all", tail: float = 0.0) -> float:
    return percentile([measure(classes_of(run)[klass])[metric] for run in runs(scenario, policy, tail)], 0.5)


@pytest.mark.parametrize(("scenario", "policy"), PRINTED)
def test_the_paper_s_rows_are_reproduced(scenario: str, policy: str) -> None:
    p95, throughput, waste, zombies, recovered = PRINTED[scenario, policy]
    if p95 is not None:
        assert median(scenario, policy, "p95_s") == pytest.approx(p95, rel=0.25)
    assert median(scenario, policy, "throughput_per_min") == pytest.approx(throughput, rel=0.25)
    assert median(scenario, policy, "lane_waste_s") == pytest.approx(waste, rel=0.25, abs=2)
    assert median(scenario, policy, "zombies") == pytest.approx(zombies, rel=0.25, abs=1)
    assert median(scenario, policy, "recovered") == pytest.approx(recovered, rel=0.25, abs=1)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ours_answers_as_many_calls_wastes_half_and_starves_nobody_who_waits(scenario: str) -> None:
    assert median(scenario, "agentrm", "answered") >= median(scenario, "paper", "answered")
    assert median(scenario, "agentrm", "lane_waste_s") <= 0.5 * median(scenario, "paper", "lane_waste_s")
    assert median(scenario, "agentrm", "throughput_per_min") >= median(scenario, "paper", "throughput_per_min")
    assert median(scenario, "agentrm", "throughput_per_min") >= 0.95 * median(scenario, "oracle", "throughput_per_min")
    assert median(scenario, "agentrm", "starved", "interactive") == 0
    bound = 0.6 if scenario in ("faulty", "cascade") else 1.0
    assert median(scenario, "agentrm", "p95_s") <= bound * median(scenario, "paper", "p95_s")


def test_under_high_load_a_person_waits_a_twentieth_of_the_paper_s_p95() -> None:
    assert median("high", "agentrm", "wait_p95_s", "interactive") <= 0.05 * 323


@pytest.mark.parametrize("tail", [0.0, 1.0])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_healthy_call_is_reaped_however_long_it_takes(scenario: str, tail: float) -> None:
    assert sum(o.falsely_reaped for run in runs(scenario, "agentrm", tail) for o in run) == 0


def test_what_is_usual_is_learnt_when_chunks_come_not_when_calls_start() -> None:
    """Four calls start at 10.5 s and show their first chunk at 11.3 s: only the look at 12 s knows what is usual."""
    hung = Turn(0.0, "hung", "background", "t", 5.0, 10, hang=True, hang_s=900.0, retry_ok=True)
    healthy = [Turn(10.5, f"a{i}", "background", "t", 5.0, 10) for i in range(4)]
    first, *_ = simulate(POLICIES["agentrm"], 5, [hung, *healthy])
    assert (first.held_s, first.recovered) == (pytest.approx(12.0), True)


def test_every_turn_ends_under_every_policy() -> None:
    for policy in POLICIES.values():
        outcomes = simulate(policy, 2, generate("faulty", 1))
        assert len(outcomes) == 63
        assert all(o.ended >= o.turn.arrival + min(o.turn.service, 1) for o in outcomes), policy.name


def test_a_seed_gives_the_same_turns_and_the_same_run() -> None:
    assert generate("cascade", 7) == generate("cascade", 7) != generate("cascade", 8)
    once, again = (simulate(POLICIES["agentrm"], 4, generate("high", 3)) for _ in range(2))
    assert [(o.waited_s, o.ended) for o in once] == [(o.waited_s, o.ended) for o in again]


def test_a_file_of_turns_is_simulated_and_reported_per_class(tmp_path: Path) -> None:
    turns = [Turn(0.0, "a", "background", "t", 40.0, 100), Turn(0.5, "b", "background", "t", 40.0, 100)]
    turns += [Turn(1.0, "c", "interactive", "t", 2.0, 10)]
    path, report = tmp_path / "turns.jsonl", tmp_path / "out.json"
    write_file(path, turns)
    assert read_file(path) == turns
    line = ["simulate", "scheduling", "--scenario", str(path), "--policy", "fifo,agentrm", "--lanes", "1"]
    assert main([*line, "--json", str(report)]) == 0
    rows = {(r["policy"], r["class"]): r for r in json.loads(report.read_text())["results"]}
    assert set(METRICS) <= set(rows["fifo", "interactive"])
    assert rows["fifo", "interactive"]["wait_p95_s"]["median"] == pytest.approx(79, abs=0.01)
    assert rows["agentrm", "interactive"]["wait_p95_s"]["median"] == pytest.approx(39, abs=0.01)


@pytest.mark.parametrize("line", ['{"arrival": 1}', '{"arrival": -1, "agent": "a", "service": 1}', "[]", "{"])
def test_a_line_that_is_no_turn_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"arrival": 0, "agent": "a", "service": 1}\n' + line + "\n")
    with pytest.raises(WorkloadError, match="line 2"):
        read_file(path)


def test_what_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, named in (
        (["--scenario", "nothing"], "nothing"),
        (["--policy", "best"], "best"),
        (["--mix", "1/2"], "1/2"),
        (["--seeds", "0"], "--seeds 0: from 1"),
        (["--tail", "-1"], "--tail -1"),
    ):
        assert main(["simulate", "scheduling", *arguments]) == 2
        assert named in capsys.readouterr().err


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_auto_is_within_five_percent_of_the_best_fixed_policy(scenario: str) -> None:
    def median(name: str, klass: str, metric: str) -> float:
        runs = (simulate(POLICIES[name], SCENARIOS[scenario].lanes, generate(scenario, seed)) for seed in range(11))
        return statistics.median(measure(classes_of(outcomes)[klass])[metric] for outcomes in runs)

    fixed = ("agentrm", "agentrm-fifo", "agentrm-rr", "agentrm-priority", "agentrm-drf")
    best = min(median(name, "interactive", "p95_s") for name in fixed)
    assert median("agentrm-auto", "interactive", "p95_s") <= 1.05 * best
    best = max(median(name, "all", "throughput_per_min") for name in fixed)
    assert median("agentrm-auto", "all", "throughput_per_min") >= 0.95 * best
