"""The figures of a run, and their spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrm.simulation.scheduling import Outcome
from agentrm.simulation.workload import CLASSES

__all__ = ["METRICS", "classes_of", "measure", "percentile", "spread"]

STARVED_S, LAG_S = 60.0, 30.0
METRICS = (
    "p50_s", "p95_s", "p99_s", "wait_p50_s", "wait_p95_s", "throughput_per_min", "answered", "failed", "zombies",
    "false_reaps", "mean_hold_s", "lane_waste_s", "recovered", "starved", "lags", "jain",
)  # fmt: skip


def percentile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * q
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _jain(values: Sequence[float]) -> float:
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def classes_of(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """All outcomes and those of each class."""
    found = {"all": list(outcomes)}
    for klass in CLASSES:
        found[klass] = [o for o in outcomes if o.turn.klass == klass]
    return found


def measure(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """One run, one class. Throughput is all turns over the time from the first arrival to the last end, as the paper's
    tables count; `jain` is over the agents' mean slowdowns (latency over service time)."""
    latencies = [o.latency_s for o in outcomes]
    waits = [o.waited_s for o in outcomes]
    zombies = [o for o in outcomes if o.zombie]
    span = max((o.ended for o in outcomes), default=0.0) - min((o.turn.arrival for o in outcomes), default=0.0)
    by_agent: dict[str, list[float]] = {}
    for o in outcomes:
        by_agent.setdefault(o.turn.agent, []).append(o.latency_s / o.turn.service)
    waste = sum(o.held_s for o in zombies)
    return {
        "p50_s": percentile(latencies, 0.5),
        "p95_s": percentile(latencies, 0.95),
        "p99_s": percentile(latencies, 0.99),
        "wait_p50_s": percentile(waits, 0.5),
        "wait_p95_s": percentile(waits, 0.95),
        "throughput_per_min": 60 * len(outcomes) / span if span else 0.0,
        "answered": sum(o.answered for o in outcomes),
        "failed": sum(not o.answered for o in outcomes),
        "zombies": len(zombies),
        "false_reaps": sum(o.falsely_reaped for o in outcomes),
        "mean_hold_s": waste / len(zombies) if zombies else 0.0,
        "lane_waste_s": waste,
        "recovered": sum(o.recovered for o in outcomes),
        "starved": sum(o.waited_s > STARVED_S for o in outcomes),
        "lags": sum(o.latency_s > LAG_S for o in outcomes),
        "jain": _jain([sum(v) / len(v) for v in by_agent.values()]) if by_agent else 1.0,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and the range of the middle nine tenths."""
    return {"median": percentile(values, 0.5), "low": percentile(values, 0.05), "high": percentile(values, 0.95)}
