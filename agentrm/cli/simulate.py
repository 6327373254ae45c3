"""`agentrm simulate`: what each policy would have done with a workload. Here: `scheduling`, and the way to the
others."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from agentrm.cli import simulate_kv, simulate_programs
from agentrm.cli.usage import UsageError
from agentrm.config.sections import MOST_LANES
from agentrm.simulation.metrics import LAG_S, METRICS, STARVED_S, classes_of, measure, spread
from agentrm.simulation.scheduling import POLICIES, simulate
from agentrm.simulation.workload import MIX, SCENARIOS, Turn, generate, read_file

__all__ = ["add_parser", "run", "run_scheduling"]

DEFAULT_POLICIES = "fifo,rr,priority,fifo-reaper,paper,agentrm,oracle"
SHOWN = (
    ("p50_s", "P50 s"), ("p95_s", "P95 s"), ("p99_s", "P99 s"), ("wait_p95_s", "wait P95"),
    ("throughput_per_min", "per min"), ("answered", "answered"), ("zombies", "zombies"), ("mean_hold_s", "hold s"),
    ("lane_waste_s", "waste s"), ("recovered", "recovered"), ("false_reaps", "false"), ("starved", "starved"),
    ("lags", "lags"), ("jain", "Jain"),
)  # fmt: skip

ABOUT_COLUMNS = (
    "Prints medians over the seeds. P50, P95, P99: seconds from asking to the answer; wait P95: seconds in the queue; "
    "per min: turns; zombies: calls lost to a hang; hold: seconds that those kept a lane, on average; waste: all "
    "together; recovered: turns answered after a hang; false: healthy calls taken for hung ones; starved: turns that "
    f"waited more than {STARVED_S:g} s; lags: turns that took more than {LAG_S:g} s; Jain: fairness between agents, "
    "1 is even."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `simulate` and its kinds."""
    parser = commands.add_parser("simulate", help="what each policy would have done with a workload")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = kinds.add_parser(
        "scheduling", help="lanes, priorities and hung calls, through the real kernel", description=ABOUT_COLUMNS
    )
    one.add_argument("--scenario", default="all", help=f"{', '.join(SCENARIOS)}, all, or a file of turns (JSON lines)")
    one.add_argument("--policy", default=DEFAULT_POLICIES, help="names, comma-separated; of: " + ", ".join(POLICIES))
    one.add_argument("--seeds", type=int, default=50, help="runs of each scenario (default 50; a file runs once)")
    one.add_argument("--mix", default="30/30/40", help="shares of interactive/subagent/background (default 30/30/40)")
    one.add_argument("--lanes", type=int, help="lanes (default: the scenario's, 4 for a file)")
    one.add_argument("--tail", type=float, default=0.0, help="log-normal service times of this sigma")
    one.add_argument("--json", type=Path, metavar="FILE", help="write all figures, per class, with their spread")
    one.set_defaults(simulate=_scheduling)
    simulate_kv.add_parser(kinds)
    simulate_programs.add_parser(kinds)


def _mix(text: str) -> Sequence[float]:
    try:
        shares = [float(x) for x in text.split("/")]
    except ValueError:
        shares = []
    if len(shares) != 3 or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise UsageError(f"--mix {text!r}: three shares such as 30/30/40 are needed")
    return [x / sum(shares) for x in shares]


def _workloads(args: argparse.Namespace) -> dict[str, tuple[int, list[list[Turn]]]]:
    """(lanes, runs) by name."""
    for option, value in (("--seeds", args.seeds), ("--lanes", args.lanes)):
        if value is not None and not 1 <= value <= MOST_LANES:
            raise UsageError(f"{option} {value}: from 1 to {MOST_LANES} are needed")
    if not 0 <= args.tail <= 10:
        raise UsageError(f"--tail {args.tail:g}: a sigma from 0 to 10 is needed")
    mix = _mix(args.mix)
    names = list(SCENARIOS) if args.scenario == "all" else [args.scenario]
    found: dict[str, tuple[int, list[list[Turn]]]] = {}
    for name in names:
        if name in SCENARIOS:
            runs = [generate(name, seed, mix, tail=args.tail) for seed in range(args.seeds)]
            found[name] = (args.lanes or SCENARIOS[name].lanes, runs)
        elif Path(name).is_file():
            found[Path(name).name] = (args.lanes or 4, [read_file(name)])
        else:
            raise UsageError(f"--scenario {name!r} is neither a file nor one of {', '.join(SCENARIOS)}, all")
    return found


def run_scheduling(args: argparse.Namespace) -> list[dict[str, object]]:
    """One row per scenario, policy and class."""
    names = [n for n in args.policy.split(",") if n]
    unknown = [n for n in names if n not in POLICIES]
    if unknown or not names:
        raise UsageError(f"--policy {args.policy!r}: choose from {', '.join(POLICIES)}")
    rows: list[dict[str, object]] = []
    for scenario, (lanes, runs) in _workloads(args).items():
        print(f"\n{scenario}: {len(runs[0])} turns, {lanes} lanes, {len(runs)} runs; medians, mix {args.mix}")
        print("  " + f"{'policy':18}" + "".join(f"{title:>10}" for _, title in SHOWN))
        for name in names:
            policy = POLICIES[name]
            measured: dict[str, list[dict[str, float]]] = {}
            for turns in runs:
                for klass, outcomes in classes_of(simulate(policy, lanes, turns)).items():
                    if outcomes:
                        measured.setdefault(klass, []).append(measure(outcomes))
            for klass, found in measured.items():
                figures = {metric: spread([one[metric] for one in found]) for metric in METRICS}
                rows.append({"scenario": scenario, "policy": name, "class": klass, **figures})
                if klass in ("all", "interactive"):
                    label = name if klass == "all" else "  interactive"
                    print("  " + f"{label:18}" + "".join(f"{figures[m]['median']:>10.4g}" for m, _ in SHOWN))
    return rows


def run(args: argparse.Namespace) -> int:
    """Runs the kind that was asked for; 0 unless something could not be read."""
    status: int = args.simulate(args)
    return status


def _scheduling(args: argparse.Namespace) -> int:
    rows = run_scheduling(args)
    if args.json is not None:
        mix = [round(x, 4) for x in _mix(args.mix)]
        args.json.write_text(json.dumps({"mix": mix or MIX, "results": rows}, indent=1) + "\n")
        print(f"\n{len(rows)} rows in {args.json}")
    return 0
