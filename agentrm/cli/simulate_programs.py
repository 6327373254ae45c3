"""`agentrm simulate programs`: how many steps a fleet of programs would get done on engines, under each router."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrm.cli.simulate_kv import policies
from agentrm.cli.usage import UsageError
from agentrm.simulation.engine import ENGINE
from agentrm.simulation.metrics import spread
from agentrm.simulation.program_metrics import FIGURES, figures
from agentrm.simulation.program_routers import ROUTERS, Direct
from agentrm.simulation.programs import Fleet, Step, steps_of
from agentrm.simulation.traces import FORMATS, read_trace

__all__ = ["SHARED_TOKENS", "add_parser", "fleet_figures", "run"]

SHARED_TOKENS = {"glm-steps": 1_000, "claude-code": 15_000, "mooncake": 512}
"""Head that all prompts of a format have in common: estimated; recorded sizes of tools and system text; one block."""
CAPS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
"""The caps that are tried, as shares of the programs that fit with the mean context. Where programs are mostly idle,
the best is far above 1."""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `programs` to the kinds of `simulate`."""
    one = kinds.add_parser("programs", help="a fleet of recorded programs in front of simulated engines")
    one.add_argument("--trace", type=Path, required=True, help="JSON lines, plain or .gz")
    one.add_argument("--format", choices=FORMATS, required=True)
    one.add_argument("--engines", type=int, default=1)
    one.add_argument("--kv-tokens", type=int, default=ENGINE.kv_tokens, help="cache of each engine, in tokens")
    one.add_argument("--admit", type=int, default=96, help="programs at once (default 96)")
    one.add_argument("--policy", default="lru,thunderagent-code,agentrm", help="of: " + ", ".join(ROUTERS))
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--minutes", type=float, default=70.0,
                     help="simulated (default 70); the first 10, at most a seventh, are not counted")  # fmt: skip
    one.add_argument("--rollout", type=int, default=0, metavar="BATCHES", help="batches instead of a window")
    one.add_argument("--json", type=Path, metavar="FILE", help="write the figures with their spread over the seeds")
    one.set_defaults(simulate=run)


def fleet_figures(
    policy: str,
    programs: Sequence[tuple[Step, ...]],
    *,
    engines: int,
    kv_tokens: int,
    admit: int,
    seed: int,
    shared_tokens: int,
    minutes: float = 70.0,
    batches: int = 0,
) -> dict[str, float]:
    """One run of one router; of `cap` the best of several."""

    def once(most: float | None = None) -> dict[str, float]:
        fleet = Fleet(programs, engines, kv_tokens, seed, ENGINE, shared_tokens)
        router = ROUTERS[policy](fleet) if most is None else Direct(fleet, most)
        if batches:
            found = fleet.run(router, admit, until_s=1e9, batches=batches)
        else:
            found = fleet.run(router, admit, until_s=60 * minutes, warm_up_s=min(600.0, 60 * minutes / 7))
        return figures(found, kv_tokens)

    if policy != "cap":
        return once()
    contexts = [s.prompt + s.output for p in programs for s in p]
    fit = engines * kv_tokens * len(contexts) / sum(contexts)
    caps = sorted({max(1, min(admit, round(fit * share))) for share in CAPS})
    return max((once(cap) for cap in caps), key=lambda f: f["steps_per_min"])


def run(args: argparse.Namespace) -> int:
    """0 unless something could not be read."""
    for name in ("engines", "kv_tokens", "admit", "seeds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1")
    if not args.minutes > 0 or args.rollout < 0:
        raise UsageError(f"--minutes {args.minutes} --rollout {args.rollout}: above 0 and from 0")
    names = policies(args.policy, ROUTERS)
    programs = [steps_of(p) for p in read_trace(args.trace, args.format)]
    programs = [p for p in programs if max(s.prompt + s.output for s in p) <= args.kv_tokens - 20_000]
    if not programs:
        raise UsageError(f"--kv-tokens {args.kv_tokens}: no program of the trace fits")
    print(f"{args.trace.name}: {args.admit} programs at once, {args.engines} engines, {args.seeds} seeds")
    print("  " + f"{'policy':20}" + "".join(f"{name:>23}" for name in FIGURES))
    rows: list[dict[str, Any]] = []
    for name in names:
        each = [
            fleet_figures(
                name, programs, engines=args.engines, kv_tokens=args.kv_tokens, admit=args.admit, seed=seed,
                shared_tokens=SHARED_TOKENS[args.format], minutes=args.minutes, batches=args.rollout,
            )
            for seed in range(args.seeds)
        ]  # fmt: skip
        found = {figure: spread([one[figure] for one in each]) for figure in FIGURES}
        row: dict[str, Any] = {"policy": name, "engines": args.engines, "admit": args.admit}
        row.update({figure: found[figure]["median"] for figure in FIGURES})
        rows.append({**row, "spread": found})
        print("  " + f"{name:20}" + "".join(f"{found[f]['median']:>23.5g}" for f in FIGURES), flush=True)
    if args.json is not None:
        body = {
            "trace": args.trace.name, "format": args.format, "kv_tokens": args.kv_tokens, "seeds": args.seeds,
            "rollout": args.rollout, "results": rows,
        }  # fmt: skip
        args.json.write_text(json.dumps(body, indent=1) + "\n")
        print(f"\n{len(rows)} rows in {args.json}")
    return 0
