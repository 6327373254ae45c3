"""The figures of one simulated fleet."""

from __future__ import annotations

from collections.abc import Sequence

from agentrm.simulation.metrics import percentile
from agentrm.simulation.programs import IMBALANCE, Run

__all__ = ["FIGURES", "figures"]

FIGURES = (
    "steps_per_min", "hit_tokens", "p50_slowdown", "p95_slowdown", "p99_slowdown", "held_large_over_small", "imbalance",
    "jain", "recomputed_tokens",
)  # fmt: skip


def figures(run: Run, kv_tokens: int) -> dict[str, float]:
    """`slowdown`: a finished program's time over what it takes alone. `held_large_over_small`: mean seconds for which
    the router held back the programs of the largest tenth, over that of the smallest half (both plus one second).
    `imbalance`: share of the time in which the fullest and the emptiest engine are more than 20 points apart. `jain` is
    over the slowdowns. `recomputed_tokens`: what had been computed before, and was computed again."""
    done = [p for p in run.programs if p.ended is not None]
    slow = [((p.ended or 0.0) - p.began) / run.alone_s[p.key] for p in done]
    apart = [max(s) - min(s) > IMBALANCE * kv_tokens for s in run.samples]
    squares = sum(s * s for s in slow)
    return {
        "steps_per_min": 60.0 * run.steps / run.seconds if run.seconds > 0 else 0.0,
        "hit_tokens": run.hit_tokens / run.prompt_tokens if run.prompt_tokens else 0.0,
        "p50_slowdown": percentile(slow, 0.5),
        "p95_slowdown": percentile(slow, 0.95),
        "p99_slowdown": percentile(slow, 0.99),
        "held_large_over_small": _large_over_small(run),
        "imbalance": sum(apart) / len(apart) if apart else 0.0,
        "jain": sum(slow) ** 2 / (len(slow) * squares) if squares else 1.0,
        "recomputed_tokens": float(run.recomputed_tokens),
        "programs": float(len(done)),
    }


def _large_over_small(run: Run) -> float:
    by_size = sorted(run.programs, key=lambda p: max(s.prompt for s in p.steps))
    large, small = by_size[-max(1, len(by_size) // 10) :], by_size[: max(1, len(by_size) // 2)]

    def held(programs: Sequence[object]) -> float:
        return 1.0 + sum(p.held_s for p in programs) / len(programs)  # type: ignore[attr-defined]

    return held(large) / held(small)
