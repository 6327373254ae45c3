"""results_local_engine.md from the files of earlier runs: the bars, met or missed, and all figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.programs import Bar, bar_rows, table

Run = Mapping[str, Any]
Row = Mapping[str, Any]
ROWS = ("turn-kv-kept", "preempted-greedy", "batch-8", "contention-16-agents", "memory")
WHERE = {"cpu": "CPU", "cuda": "GPU"}

INTRO = """## Local engine

`python -m benchmarks.local_engine --report FILE ...` wrote this section from the runs below, `python -m
benchmarks.local_engine --json FILE`; on a GPU: the same with `--device cuda`. A ratio is peer over ours in one run, so
larger is better, and for `p95_ratio` ours over the peer's, so smaller is. Ratios are medians of the rounds, in brackets
or as `spread` the lowest and the highest round; times are seconds.
"""


def report(runs: Sequence[Run]) -> tuple[str, list[Bar]]:
    """The whole file, and the bars that are missed."""
    lines, bars = [INTRO], list[Bar]()
    for run in runs:
        for row in run["results"]:
            bars += (Bar(f"{bar.name} ({setting(run)})", *bar[1:]) for bar in bars_of(row))
    lines += table(("bar", "", "found"), bar_rows(bars))
    for device, name in WHERE.items():
        of_kind = [run for run in runs if run["device"].startswith(device)]
        measured = {row["name"] for run in of_kind for row in run["results"]}
        missing = [row for row in ROWS if row not in measured]
        if missing:
            lines.append(f"\nOn a {name} **not measured**: {', '.join(missing)}.")
        for run in of_kind:
            lines += figures(run)
    return "\n".join(lines) + "\n", [bar for bar in bars if not bar.met]


def setting(run: Run) -> str:
    """On what it ran."""
    if run["card"]:
        return f"{run['model']}, {run['dtype']}, {run['card']}"
    chosen = "" if run["threads_asked"] else ", torch's own choice"
    return f"{run['model']}, {run['dtype']}, {run['threads']} of {run['cores']} cores{chosen}"


def figures(run: Run) -> Iterator[str]:
    yield f"\n### {', '.join(dict.fromkeys(row['name'] for row in run['results']))}: {setting(run)}\n"
    command = re.sub(r"--json \S+", "--json FILE", run["command"])
    ran = f"{run['priority']}, {run['load']:.0f} others ready to run when it began"
    yield f"`{command}`, {ran}; torch {run['torch']}, transformers {run['transformers']}\n"
    many = [", ".join(f"{key} {short(row[key])}" for key in row if key != "name") for row in run["results"]]
    yield from table(("row", "figures"), [[row["name"], one] for row, one in zip(run["results"], many, strict=True)])


def short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)


def bars_of(row: Row) -> Iterable[Bar]:
    """What a row has to show; a row that failed misses all of it."""
    for bar in _BARS[row["name"]](row):
        yield bar if "failed" not in row else bar._replace(met=False, limit=row["failed"])


def at_least(name: str, row: Row, ratio: str, spread: str | None, bar: float | None) -> Iterator[Bar]:
    if bar is not None:
        found = f"{row[ratio]:.3g}" + (f" ({row[spread]})" if spread else "")
        yield Bar(f"{name}, at least {bar:g}", found, row[ratio] >= bar)


def _turns(row: Row) -> Iterator[Bar]:
    name = f"first token, {row['context']:,} tokens"
    yield from at_least(f"{name} kept", row, "ratio", "spread", row["bar"])
    yield from at_least(f"{name} through the disk", row, "ratio_disk", "spread_disk", row["bar_disk"])


def _preempted(row: Row) -> Iterator[Bar]:
    found = f"{row['mismatches']} ({row['switches']} switches, {row['swapped_in']} swaps, {row['snapshots']} snapshots)"
    name = f"answers of {row['programs']} programs on {row['model']} that differ, none"
    yield Bar(name, found, row["mismatches"] == row["bar"])


def _batch(row: Row) -> Iterator[Bar]:
    name = f"8 programs of {row['lengths']} lengths"
    yield from at_least(name, row, "ratio", "spread", row["bar"])
    yield from at_least(
        f"{name}, against transformers", row, "ratio_transformers", "spread_transformers", row["bar_transformers"]
    )


def _contention(row: Row) -> Iterator[Bar]:
    name = f"{row['agents']} agents, against unmanaged"
    yield from at_least(f"{name}: throughput", row, "ratio", None, row["bar"])
    p95 = row["p95_ratio"]
    yield Bar(f"{name}: p95 of the person, at most {row['bar_p95']:g}", f"{p95:.3g}", p95 <= row["bar_p95"])


def _memory(row: Row) -> Iterator[Bar]:
    peak, limit = row["peak"], row["limit"]
    yield Bar(f"most memory in use, at most {limit:,} bytes", f"{peak:,}", peak <= limit)
    done, programs = row["finished"], row["programs"]
    yield Bar(f"programs that finish with half of the memory, {programs}", str(done), done == programs)


_BARS = {
    "turn-kv-kept": _turns, "preempted-greedy": _preempted, "batch-8": _batch, "contention-16-agents": _contention,
    "memory": _memory,
}  # fmt: skip
