"""`agentrm simulate kv`: how much of the prompts each replacement policy would have found in the cache."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Collection
from pathlib import Path

from agentrm.cli.usage import UsageError
from agentrm.simulation.kv_policies import POLICIES, replay
from agentrm.simulation.kv_trace import KVTrace
from agentrm.simulation.traces import FORMATS, TracedProgram, arrange, peak_live_tokens, read_trace

__all__ = ["add_parser", "run"]

DEFAULT_POLICIES = "lru,agentrm,belady"
DEFAULT_CAPACITIES = "5%,10%,20%,30%,50%"
SESSIONS = 120


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `kv` to the kinds of `simulate`."""
    one = kinds.add_parser("kv", help="replacement policies of a prefix cache, on a recorded trace")
    one.add_argument("--trace", type=Path, required=True, help="JSON lines, plain or .gz")
    one.add_argument("--format", choices=FORMATS, required=True)
    one.add_argument("--capacity", default=DEFAULT_CAPACITIES, help="tokens, or percent of the peak of live contexts")
    one.add_argument("--policy", default=DEFAULT_POLICIES, help="names, comma-separated; of: " + ", ".join(POLICIES))
    one.add_argument("--seed", type=int, default=0, help="when coding sessions begin, and which (default 0)")
    one.add_argument("--sessions", type=int, default=SESSIONS, help=f"coding sessions, over hours (default {SESSIONS})")
    one.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    one.set_defaults(simulate=run)


def capacity_tokens(text: str, peak: int) -> int:
    """Tokens of a capacity as given: `10%` of the peak, or a number of tokens."""
    try:
        tokens = round(float(text[:-1]) / 100 * peak) if text.endswith("%") else int(text)
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise UsageError(f"--capacity {text!r}: tokens (1000000) or percent of the peak (10%) are needed")
    return tokens


def policies(text: str, known: Collection[str]) -> list[str]:
    """The names in a comma-separated list."""
    names = [n for n in text.split(",") if n]
    unknown = [n for n in names if n not in known]
    if unknown or not names:
        raise UsageError(f"--policy {text!r}: choose from {', '.join(known)}")
    return names


def sample(programs: list[TracedProgram], form: str, sessions: int, seed: int) -> list[TracedProgram]:
    """So many coding sessions with their sub-agents; of the other formats all."""
    if form != "claude-code":
        return programs
    if sessions < 1:
        raise UsageError(f"--sessions {sessions}: at least 1")
    names = sorted({p.id.split("/")[0] for p in programs})
    chosen = set(random.Random(seed).sample(names, min(sessions, len(names))))
    return [p for p in programs if p.id.split("/")[0] in chosen]


def run(args: argparse.Namespace) -> int:
    """0 unless something could not be read."""
    names = policies(args.policy, POLICIES)
    chosen = sample(read_trace(args.trace, args.format), args.format, args.sessions, args.seed)
    programs = arrange(chosen, args.format, args.seed)
    peak = peak_live_tokens(programs)
    capacities = [(c, capacity_tokens(c, peak)) for c in args.capacity.split(",") if c]
    trace = KVTrace(programs)
    print(
        f"{args.trace.name}: {len(programs)} programs, {len(trace.requests)} calls, {trace.input_tokens} input tokens, "
        f"peak {peak} tokens live"
    )
    print(f"  {'capacity':>12} {'policy':10} {'hit tokens':>10} {'gap closed':>10}")
    rows = []
    for given, tokens in capacities:
        blocks = tokens // trace.block_tokens
        if not blocks:
            raise UsageError(f"--capacity {given}: {tokens} tokens are less than one block of {trace.block_tokens}")
        found = {n: replay(trace, POLICIES[n](trace, blocks)) for n in dict.fromkeys([*names, "lru", "belady"])}
        gap = found["belady"] - found["lru"]
        for name in names:
            closed = (found[name] - found["lru"]) / gap if gap else 1.0
            share = found[name] / trace.input_tokens
            rows.append({
                "policy": name, "capacity": given, "capacity_tokens": tokens, "hit_tokens": share,
                "hit_token_count": found[name], "gap_closed": closed,
            })  # fmt: skip
            print(f"  {given:>12} {name:10} {share:10.4f} {closed:10.3f}")
    if args.json is not None:
        body = {
            "trace": args.trace.name, "format": args.format, "seed": args.seed, "programs": len(programs),
            "calls": len(trace.requests), "input_tokens": trace.input_tokens, "peak_tokens": peak, "results": rows,
        }  # fmt: skip
        args.json.write_text(json.dumps(body, indent=1) + "\n")
        print(f"\n{len(rows)} rows in {args.json}")
    return 0
