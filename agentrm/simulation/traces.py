"""Recorded programs: which calls, how long, how large, and which blocks of cache each call shares with earlier ones.

Three formats (JSON lines, plain or gzip): `claude-code` (coding sessions of the kv-cache-tester project, block hashes
of 64 tokens), `glm-steps` (SWE-agent runs on GLM-4.5, recorded by ThunderAgent's authors) and `mooncake` (the
conversation trace of the Mooncake paper, prefix blocks of 512 tokens).
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrm.errors import AgentRMError

__all__ = ["FORMATS", "Call", "TraceError", "TracedProgram", "arrange", "peak_live_tokens", "read_trace"]

SESSIONS_PER_HOUR = 30.0
"""How many coding sessions begin in an hour when they are laid out in time."""
_GLM_BLOCK = 64


class TraceError(AgentRMError, ValueError):
    """A trace that can't be read, or holds nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program. Times in seconds, on the clock of the trace."""

    at: float
    ends: float
    input_tokens: int
    output_tokens: int
    tool: str | None
    """What came after the answer, as far as the trace says: a kind of tool or of stop; None: the program's last
    word."""
    extents: tuple[tuple[int, int], ...]
    """The prompt's blocks: (first id, how many). Ids are the program's own, except where `shared` says otherwise."""


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """A program's calls in order."""

    id: str
    calls: tuple[Call, ...]
    block_tokens: int
    shared: bool = False
    """Whether block ids mean the same in all programs of the trace."""


def _lines(path: Path) -> Iterable[Any]:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise TraceError(f"{path}, line {number}: not JSON ({error})") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read ({error})") from None


def _claude(row: Any) -> list[TracedProgram]:
    found = []
    mine = [r for r in row["requests"] if "in" in r]
    for number, sub in enumerate(r for r in row["requests"] if "requests" in r):
        found += [
            TracedProgram(f"{row['id']}/{number}", _claude_calls(sub["requests"], float(sub["t"])), int(row["block"]))
        ]
    return [TracedProgram(str(row["id"]), _claude_calls(mine, 0.0), int(row["block"])), *found]


def _claude_calls(requests: Iterable[Any], start: float) -> tuple[Call, ...]:
    return tuple(
        Call(
            start + float(r["t"]), start + float(r["t"]) + float(r["api"] or 0.0), int(r["in"]), int(r["out"]),
            str(r["stop"]) or "other", tuple((int(a), int(n)) for a, n in r["h"]),
        )
        for r in sorted((r for r in requests if r.get("h")), key=lambda r: float(r["t"]))
    )  # fmt: skip


def _glm(row: Any) -> list[TracedProgram]:
    calls = []
    for step in row["steps"]:
        at, tokens = float(step["llm_start"]), int(step["in_tok"])
        blocks = ((0, max(1, tokens // _GLM_BLOCK)),)
        calls.append(Call(at, at + float(step["llm_s"]), tokens, int(step["out_tok"]), "bash", blocks))
    return [TracedProgram(f"{row['run']}/{row['id']}", tuple(calls), _GLM_BLOCK)]


def _mooncake(rows: Iterable[Any]) -> list[TracedProgram]:
    """Conversations are found by their blocks: a request belongs to the one that last used its longest known prefix,
    unless all that it shares is what most requests share."""
    calls: list[list[Call]] = []
    owner: dict[int, int] = {}
    for row in rows:
        blocks = [int(b) for b in row["hash_ids"]]
        at = float(row["timestamp"]) / 1000
        known = next((i for i in range(len(blocks) - 1, 0, -1) if blocks[i] in owner), None)
        who = owner[blocks[known]] if known is not None else len(calls)
        if who == len(calls):
            calls.append([])
        owner.update(dict.fromkeys(blocks, who))
        tokens, output = int(row["input_length"]), int(row["output_length"])
        calls[who].append(Call(at, at + 0.03 * output, tokens, output, "user", _runs(blocks)))
    return [TracedProgram(f"c{i}", tuple(c), 512, shared=True) for i, c in enumerate(calls)]


def _runs(blocks: list[int]) -> tuple[tuple[int, int], ...]:
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return tuple((a, n) for a, n in runs)


FORMATS = ("claude-code", "glm-steps", "mooncake")


def read_trace(path: str | Path, form: str, *, run: str | None = None) -> list[TracedProgram]:
    """The programs of a file. `run`: of `glm-steps`, only this run of the recording (bs1, bs4, bs32).

    Raises TraceError with the place and the reason.
    """
    path = Path(path)
    if form not in FORMATS:
        raise TraceError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    rows = _lines(path)
    try:
        if form == "mooncake":
            programs = _mooncake(rows)
        elif form == "claude-code":
            programs = [p for row in rows for p in _claude(row)]
        else:
            programs = [p for row in rows if run in (None, row["run"]) for p in _glm(row)]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path} is not a trace of format {form} ({type(error).__name__}: {error})") from None
    programs = [p for p in programs if p.calls]
    if not programs:
        raise TraceError(f"{path} holds no programs of format {form}")
    return programs


def arrange(programs: list[TracedProgram], form: str, seed: int = 0) -> list[TracedProgram]:
    """The programs on one clock. Coding sessions, whose times count from their own start, begin at random; the others
    were recorded together and stay as they are. Each run of `glm-steps` is taken as if it began when the one before
    ended."""
    if form == "claude-code":
        draw = random.Random(seed)
        mains = [p for p in programs if "/" not in p.id]
        starts = {p.id: draw.random() * 3600 * len(mains) / SESSIONS_PER_HOUR for p in mains}
        return [_moved(p, starts[p.id.split("/")[0]]) for p in programs]
    if form == "glm-steps":
        ends: dict[str, list[float]] = {}
        for p in programs:
            span = ends.setdefault(p.id.split("/")[0], [p.calls[0].at, p.calls[-1].ends])
            span[0], span[1] = min(span[0], p.calls[0].at), max(span[1], p.calls[-1].ends)
        moved, at = {}, 0.0
        for run, (begin, end) in sorted(ends.items(), key=lambda e: e[1]):
            moved[run] = at - begin
            at += end - begin + 60.0
        return [_moved(p, moved[p.id.split("/")[0]]) for p in programs]
    return programs


def _moved(program: TracedProgram, by: float) -> TracedProgram:
    calls = tuple(
        Call(c.at + by, c.ends + by, c.input_tokens, c.output_tokens, c.tool, c.extents) for c in program.calls
    )
    return TracedProgram(program.id, calls, program.block_tokens, program.shared)


def peak_live_tokens(programs: Iterable[TracedProgram]) -> int:
    """The largest sum of the prompts of all programs between their first and their last call."""
    steps: list[tuple[float, int]] = []
    for program in programs:
        held = 0
        for call in program.calls:
            steps.append((call.at, call.input_tokens - held))
            held = call.input_tokens
        steps.append((program.calls[-1].ends, -held))
    steps.sort()
    most = now = 0
    for _, change in steps:
        now += change
        most = max(most, now)
    return most
