"""What program-aware scheduling and learned replacement are worth on recorded agent programs, in simulated time.

    python -m benchmarks.programs --trace-dir DIR [--seeds 1] [--json FILE] [--report FILE]

Runs `agentrm simulate kv` and `agentrm simulate programs` on the traces in DIR (see `TRACES`) and writes
results_programs.md, which is part of RESULTS.md, with every bar and whether it is met. Simulated time: the same figures
on every machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from agentrm.cli.main import main as agentrm
from agentrm.cli.simulate_programs import SHARED_TOKENS
from agentrm.simulation.engine import ENGINE
from agentrm.simulation.programs import Fleet, steps_of
from agentrm.simulation.traces import read_trace

HERE = Path(__file__).parent
TRACES = {
    "glm-steps": "sweagent_glm45_steps.jsonl.gz",
    "claude-code": "claude_code_sessions_dev.jsonl.gz",
    "mooncake": "mooncake_conversation.jsonl.gz",
}
ALL = "lru,cap,fifo-set,thunderagent-paper,thunderagent-code,ttl,agentrm,belady"
CACHES = ("lru", "ttl", "agentrm", "belady")
KV_SEEDS = 5
MOONCAKE_BLOCKS = (1_000, 3_000, 10_000, 30_000)
PUBLISHED = {
    ("lru", 24): 222, ("lru", 48): 275, ("lru", 72): 162, ("lru", 96): 140, ("thunderagent-code", 24): 220,
    ("thunderagent-code", 48): 349, ("thunderagent-code", 72): 382, ("thunderagent-code", 96): 371,
}  # fmt: skip
"""Steps a minute of mini-SWE on GLM-4.6 (ThunderAgent, arXiv 2602.13692, figure 4a, read off the plot)."""
NAMES = {"lru": "engine alone", "cap": "best static cap"}
INFINITE = "1000000000"
EQUAL = 0.001
"""Two throughputs that differ by no more than this share count as equal: a step more or less in a thousand at the end
of the window says nothing."""

Rows = list[dict[str, Any]]


class Bar(NamedTuple):
    """One thing that is to be shown."""

    name: str
    found: str
    met: bool
    limit: str = ""
    """What nothing could surpass in that run, where that is less than the bar asks for."""


class Runs:
    """Runs the command line and keeps what it found, in `file` too: what is in there is not run again."""

    def __init__(self, traces: Path, file: Path | None) -> None:
        self.traces, self._file = traces, file
        self.found: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def __call__(self, name: str, kind: str, form: str, *options: str) -> Rows:
        arguments = ["simulate", kind, "--format", form, *options]
        known = self.found.get(name)
        if known is not None and known["command"] == arguments:
            return list(known["results"])
        print(f"\n$ agentrm {' '.join(arguments)} --trace {TRACES[form]}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            if agentrm([*arguments, "--trace", str(self.traces / TRACES[form]), "--json", str(file)]):
                raise SystemExit(f"agentrm {' '.join(arguments)} failed")
            results: Rows = json.loads(file.read_text())["results"]
        self.found[name] = {"command": arguments, "results": results}
        if self._file is not None:
            self._file.write_text(json.dumps(self.found, indent=1) + "\n")
        return results


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table in Markdown, its first two columns to the left."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if i < 2 else "---:" for i in range(len(head))) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def bar_rows(bars: Iterable[Bar]) -> list[list[str]]:
    """The lines of the table of bars: one that is missed says so, and what the most was that could be had."""
    return [[b.name, "met" if b.met else f"**missed**{b.limit and ': ' + b.limit}", b.found] for b in bars]


def by_policy(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in rows}


def caches(run: Runs) -> tuple[list[str], list[Bar]]:
    """Shares of the input tokens that each replacement policy finds in the cache."""
    lines, bars = list[list[str]](), list[Bar]()

    def add(title: str, capacity: str, many: list[Rows]) -> float:
        found = [{r["policy"]: r for r in rows if r["capacity"] == capacity} for rows in many]
        gaps = sorted(f["agentrm"]["gap_closed"] for f in found)
        hits = [f"{statistics.median(f[p]['hit_tokens'] for f in found):.4f}" for p in CACHES]
        spread = f" ({gaps[0]:.0%} to {gaps[-1]:.0%})" if len(gaps) > 1 else ""
        lines.append([title, capacity, *hits, f"{statistics.median(gaps):.0%}{spread}"])
        return float(statistics.median(gaps))

    policies = ("--policy", ",".join(CACHES))
    glm = run("kv glm", "kv", "glm-steps", "--capacity", "30%,50%", *policies)
    for capacity in ("30%", "50%"):
        gap = add("SWE-agent on GLM-4.5", capacity, [glm])
        bars.append(Bar(f"cache, GLM steps at {capacity}: at least 30 % of the gap closed", f"{gap:.1%}", gap >= 0.30))
    many = [
        run(f"kv claude-code {seed}", "kv", "claude-code", "--capacity", "10%,20%", "--seed", str(seed), *policies)
        for seed in range(KV_SEEDS)
    ]
    for capacity in ("10%", "20%"):
        gap = add(f"Claude Code, 120 sessions, {KV_SEEDS} seeds", capacity, many)
        name = f"cache, Claude Code at {capacity}: at least 35 % of the gap closed"
        bars.append(Bar(name, f"{gap:.1%}", gap >= 0.35))
    capacities = [str(blocks * 512) for blocks in MOONCAKE_BLOCKS]
    mooncake = run("kv mooncake", "kv", "mooncake", "--capacity", ",".join(capacities), *policies)
    worst = min(add("Mooncake conversation", capacity, [mooncake]) for capacity in capacities)
    bars.append(Bar("cache, Mooncake: not below LRU at any capacity", f"worst {worst:.1%} of the gap", worst >= 0))
    head = ("trace", "capacity", "LRU", "5 minutes", "agentrm", "Belady", "gap closed")
    return table(head, lines), bars


def fleet_rows(rows: Rows, published: bool = False) -> list[list[str]]:
    lines = []
    for row in rows:
        known = PUBLISHED.get((row["policy"], row["admit"])) if published else None
        lines.append([
            str(row["admit"]), str(NAMES.get(row["policy"], row["policy"])), f"{row['steps_per_min']:.4g}",
            str(known or ""), f"{row['hit_tokens']:.3f}", f"{row['p50_slowdown']:.2f}",
            f"{row['p99_slowdown']:.2f}", f"{row['held_large_over_small']:.1f}", f"{row['imbalance']:.0%}",
            f"{row['jain']:.2f}", f"{row['recomputed_tokens'] / 1e6:.1f}",
        ])  # fmt: skip
    return lines


FLEET_HEAD = (
    "programs", "router", "steps/min", "published", "hit", "p50 slowdown", "p99", "held large/small", "imbalance",
    "Jain", "recomputed, M",
)  # fmt: skip


def alone_steps_per_min(trace: Path, form: str) -> float:
    """Steps a minute of one program that has an engine to itself, on average over the trace."""
    programs = [steps_of(p) for p in read_trace(trace, form)]
    fleet = Fleet(programs, 1, ENGINE.kv_tokens, 0, ENGINE, SHARED_TOKENS[form])
    return 60.0 * sum(map(len, programs)) / sum(map(fleet.alone_s, programs))


def equal_shares(rows: Rows, alone: float) -> float:
    """The slowdown of all if each had the same share of the best throughput that any router had: `admit` programs as
    fast as alone would do `admit` times `alone` steps a minute. With unequal shares of no more somebody is slower."""
    return float(rows[0]["admit"]) * alone / max(float(row["steps_per_min"]) for row in rows)


def against(rows: Rows, where: str, varied: bool, alone: float, bars: list[Bar]) -> None:
    """The bars that compare ours with ThunderAgent's code and the best cap. `alone`: see `equal_shares`."""
    found = by_policy(rows)
    ours, theirs, cap = found["agentrm"], found["thunderagent-code"], found["cap"]

    def ratio(key: str, other: dict[str, Any]) -> float:
        return float(ours[key]) / float(other[key])

    more, capped = ratio("steps_per_min", theirs), ratio("steps_per_min", cap)
    least, least_cap = (1.1, 1.3) if varied else (1.0, 1.0)
    for name, found_ratio, bar in (("ThunderAgent's code", more, least), ("the best cap", capped, least_cap)):
        met = found_ratio >= bar - EQUAL * (bar == 1.0)
        bars.append(Bar(f"{where}: steps/min at least {bar} times {name}", f"{found_ratio:.4f}", met))
    tail, large = ratio("p99_slowdown", theirs), ours["held_large_over_small"]
    if max(theirs["held_large_over_small"], theirs["p99_slowdown"]) > 3:  # below, ThunderAgent holds nobody back
        most, equal = theirs["p99_slowdown"] / 3, equal_shares(rows, alone)
        limit = f"all alike at the best throughput were slowed down {equal:.2f} times" if equal > most else ""
        name = f"{where}: p99 slowdown at most a third of ThunderAgent's ({most:.2f})"
        bars.append(Bar(name, f"{tail:.2f} ({ours['p99_slowdown']:.2f})", tail <= 1 / 3, limit))
    bars.append(Bar(f"{where}: large programs held at most 3 times as long", f"{large:.2f}", large <= 3))


def fleets(run: Runs, seeds: str) -> tuple[list[str], list[Bar]]:
    """One engine, one for each trace; four engines; rollouts; a cache without bound."""
    bars, lines = list[Bar](), list[str]()
    options = ("--seeds", seeds)
    rows: Rows = []
    alone = {form: alone_steps_per_min(run.traces / TRACES[form], form) for form in ("glm-steps", "claude-code")}
    for admit in ("24", "48", "72", "96"):
        found = run(f"glm {admit}", "programs", "glm-steps", "--admit", admit, "--policy", ALL, *options)
        rows += found
        for policy in ("lru", "thunderagent-code"):
            published = PUBLISHED[policy, int(admit)]
            off = by_policy(found)[policy]["steps_per_min"] / published - 1
            name = f"published row, {NAMES.get(policy, policy)} at {admit}: within 25 %"
            bars.append(Bar(name, f"{off:+.0%}", abs(off) <= 0.25))
        against(found, f"GLM steps, {admit} programs", False, alone["glm-steps"], bars)
    lines += ["### GLM steps, one engine, 70 minutes", "", *table(FLEET_HEAD, fleet_rows(rows, published=True)), ""]
    infinite = by_policy(run("infinite", "programs", "glm-steps", "--admit", "96", "--kv-tokens", INFINITE,
                             "--policy", "lru", *options))["lru"]["hit_tokens"]  # fmt: skip
    for many in (72, 96):
        hit = next(r["hit_tokens"] for r in rows if r["policy"] == "agentrm" and r["admit"] == many)
        name = f"GLM steps, {many} programs: hit rate at least 98 % of a cache without bound ({infinite:.4f})"
        bars.append(Bar(name, f"{hit / infinite:.1%}", hit >= 0.98 * infinite))
    long = run("glm long", "programs", "glm-steps", "--admit", "96", "--minutes", "120", "--policy",
               "thunderagent-code,agentrm", *options)  # fmt: skip
    lines += ["### The same for two hours", "", *table(FLEET_HEAD, fleet_rows(long)), ""]
    rows = []
    for admit in ("48", "96"):
        found = run(f"claude-code {admit}", "programs", "claude-code", "--admit", admit, "--policy", ALL, *options)
        rows += found
        against(found, f"Claude Code (sizes vary), {admit} sessions", True, alone["claude-code"], bars)
    lines += ["### Claude Code sessions, one engine, 70 minutes", "", *table(FLEET_HEAD, fleet_rows(rows)), ""]
    rows = []
    for form, admit in (("glm-steps", "288"), ("claude-code", "192")):
        four = run(f"four engines {form}", "programs", form, "--engines", "4", "--admit", admit, "--minutes", "20",
                   "--policy", "lru,thunderagent-code,agentrm", *options)  # fmt: skip
        rows += four
        apart = by_policy(four)["agentrm"]["imbalance"]
        bars.append(Bar(f"four engines, {form}: under 10 % of the time above 20 points", f"{apart:.1%}", apart < 0.1))
    lines += ["### Four engines, 20 minutes: 288 GLM programs, 192 coding sessions", ""]
    lines += [*table(FLEET_HEAD, fleet_rows(rows)), ""]
    rows = []
    for engines in ("1", "2"):
        found = run(f"rollout {engines}", "programs", "glm-steps", "--rollout", "2", "--engines", engines, "--admit",
                    "144", "--policy", "lru,cap,thunderagent-code,agentrm", *options)  # fmt: skip
        rows += found
        each = by_policy(found)
        gain = each["agentrm"]["steps_per_min"] / each["lru"]["steps_per_min"]
        boundless = run(f"rollout {engines} infinite", "programs", "glm-steps", "--rollout", "2", "--engines", engines,
                        "--admit", "144", "--kv-tokens", INFINITE, "--policy", "lru", *options)  # fmt: skip
        best = max(row["steps_per_min"] for row in (*boundless, *found)) / each["lru"]["steps_per_min"]
        limit = f"a cache without bound and the best router: {best:.2f}" if best < 1.8 else ""
        where = f"rollouts of 144 programs, {engines} engine{'s' if engines > '1' else ''}"
        bars.append(Bar(f"{where}: at least 1.8 times the engine alone", f"{gain:.2f}", gain >= 1.8, limit))
    lines += ["### Rollouts: two batches of 144 GLM programs, on one engine, then on two", ""]
    lines += [*table(FLEET_HEAD, fleet_rows(rows)), ""]
    return lines, bars


PREFACE = (
    "## Programs, simulated\n"
    "\n"
    "Recorded agent programs against simulated caches and engines; all of it is written by "
    "`python -m benchmarks.programs\n"
    "--trace-dir DIR --seeds {seeds}`. The engine's constants, estimated ones marked, are in "
    "`agentrm/simulation/engine.py`, the\n"
    "same for all rows. Medians over the seeds.\n"
    "\n"
    "### Prefix cache: share of the input tokens found\n"
    "\n"
    "`agentrm simulate kv`. Predictors are trained on one half of the programs and used on the "
    "other; how long calls really took\n"
    "is counted as the replay goes on. Where programs announce their end (batch agents, "
    "sub-agents) that is used when it comes.\n"
)
FLEETS = (
    "\n"
    "`agentrm simulate programs`: below, so many programs at once, a new one for each that "
    "ends. A finished program's slowdown\n"
    "is its time over what it takes alone. Published: mini-SWE on GLM-4.6 (arXiv 2602.13692, "
    "figure 4a, read off the plot).\n"
    "`held large/small`: seconds for which the router held back the largest tenth, over those "
    "of the smaller half.\n"
)
BARS = (
    "Throughputs that differ by at most 0.1 % count as equal where a bar says 1.0 times. Where the most that could be "
    "had in the\nsame run is less than the bar asks for, it stands beside the bar."
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace-dir", type=Path, required=True)
    parser.add_argument("--seeds", default="1", help="of each fleet (default 1)")
    parser.add_argument("--json", type=Path, help="write all figures; those in it already are not computed again")
    parser.add_argument("--report", type=Path, default=HERE / "results_programs.md")
    args = parser.parse_args(arguments)
    run = Runs(args.trace_dir, args.json)
    cached, bars = caches(run)
    lines, more = fleets(run, args.seeds)
    bars += more
    shown = table(("bar", "", "found"), bar_rows(bars))
    text = "\n".join([PREFACE.format(seeds=args.seeds), *cached, FLEETS, *lines, "### Bars", "", BARS, "", *shown])
    args.report.write_text(text + "\n")
    print(f"\n{sum(bar.met for bar in bars)} of {len(bars)} bars met; {args.report}")


if __name__ == "__main__":
    main()
