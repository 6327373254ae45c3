"""The results as RESULTS.json and RESULTS.md; `python -m benchmarks.report` puts newer sections into the latter."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Result
from benchmarks.peers import Missing

COMMAND = "make bench"
INTRO = """# Benchmarks

`{command}` wrote this file. Every peer runs in the same process and minutes as ours, round for round in turns; a row
shows the medians of {rounds} rounds. **Ratio** is the peer's time over ours (above 1: ours is faster), with its lowest
and highest round. Absolute times depend on the machine and on what else it does; read the ratios. Cases of one thread
are timed by the processor time they used, cases of several threads by the clock.

{machine}
"""


def as_row(r: Result) -> dict[str, Any]:
    return {
        "name": r.name, "peer": r.peer, "ours_ns": round(r.ours_ns, 1), "peer_ns": round(r.peer_ns, 1),
        "ratio": round(r.ratio, 3), "spread": round(r.spread, 3),
        "ratio_low": round(r.low, 3), "ratio_high": round(r.high, 3), "bar": r.bar, "passed": r.passed, "note": r.note,
    }  # fmt: skip


def machine() -> str:
    """What this runs on, and what else does."""
    text = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    if hasattr(os, "getloadavg"):
        text += f"; {os.cpu_count()} processors, on average {os.getloadavg()[2]:.1f} programs running on them"
    if priority():
        text += ", this one with real-time priority"
    return text


def priority() -> list[str]:
    """The words before a command that gave this process its real-time priority; none if it has no such priority."""
    if not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) != os.SCHED_FIFO:
        return []
    return ["chrt", "-f", str(os.sched_getparam(0).sched_priority)]


def earlier(
    folder: Path, measured: set[str]
) -> tuple[list[Result], dict[str, str], dict[str, Any], dict[str, str]]:
    """Results, versions, the rest and the machine of each case, of those that RESULTS.json has and that were not
    measured now."""
    file = folder / "RESULTS.json"
    if not file.exists():
        return [], {}, {}, {}
    doc = json.loads(file.read_text())
    kept = [
        Result(
            *(row[k] for k in ("name", "peer", "ours_ns", "peer_ns", "ratio", "ratio_low", "ratio_high", "bar", "note"))
        )
        for row in doc["results"]
        if row["name"] not in measured
    ]
    machines = {name: text for name, text in doc["machines"].items() if name not in measured}
    return kept, doc["versions"], {k: doc[k] for k in ("inversions", "curves") if k in doc}, machines


def write(
    folder: Path,
    results: Sequence[Result],
    missing: Sequence[Missing],
    versions: dict[str, str],
    rounds: int,
    extra: dict[str, Any],
    machines: dict[str, str],
) -> None:
    """Both files."""
    rows = [as_row(r) for r in results]
    doc = {
        "command": COMMAND, "machines": machines, "rounds": rounds, "results": rows,
        "missing": [{"peer": m.peer, "why": m.why} for m in missing], "versions": versions, **extra,
    }  # fmt: skip
    (folder / "RESULTS.json").write_text(json.dumps(doc, indent=1) + "\n")
    lines = [INTRO.format(command=COMMAND, rounds=rounds, machine=_where(machines))]
    lines += ["| case | peer | ours | peer | ratio (low to high) | bar | |", "|---|---|---:|---:|---|---|---|"]
    for r in results:
        bar = "" if r.bar is None else f"{r.bar:g}"
        verdict = "" if r.bar is None else "met" if r.passed else "**missed**"
        name = r.name + (f" ({r.note})" if r.note else "")
        lines.append(
            f"| {name} | {r.peer} | {_time(r.ours_ns)} | {_time(r.peer_ns)} "
            f"| {r.ratio:.2f} ({r.low:.2f} to {r.high:.2f}) | {bar} | {verdict} |"
        )
    lines += ["", "Versions: " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items())) + "."]
    lines += [f"Not measured: {m.peer} ({m.why})." for m in missing]
    lines += ["", *_more(extra)]
    (folder / "RESULTS.md").write_text("\n".join(lines) + "\n\n" + _sections())


def _where(machines: dict[str, str]) -> str:
    """The machine of most cases, then those of the others with their names."""
    cases: dict[str, list[str]] = {}
    for name, text in machines.items():
        cases.setdefault(text, []).append(name)
    most, *others = sorted(cases, key=lambda text: -len(cases[text]))
    return ". ".join([most, *(f"{', '.join(sorted(cases[text]))}: {text}" for text in others)])


def _sections() -> str:
    """What the other commands wrote, each its own file."""
    return "\n".join(section.read_text() for section in sorted(Path(__file__).parent.glob("results_*.md")))


def _more(extra: dict[str, Any]) -> list[str]:
    lines = []
    for who, (bad, of) in extra.get("inversions", {}).items():
        lines.append(f"Served against their priority, of 1,000 waiting: {who} {bad} of {of} pairs ({bad / of:.1%}).")
    if "curves" in extra:
        lines.append("\n![cost against waiters](scale-waiters.svg) ![cost against tenants](scale-tenants.svg)")
    return lines


def _time(ns: float) -> str:
    return f"{ns:,.0f} ns" if ns < 10_000 else f"{ns / 1e3:,.1f} us" if ns < 1e7 else f"{ns / 1e6:,.1f} ms"


if __name__ == "__main__":
    file = Path(__file__).parent / "RESULTS.md"
    own, _, _ = file.read_text().partition("\n## ")
    file.write_text(own.rstrip() + "\n\n" + _sections())
