"""What was measured, as GATEWAY.json and results_gateway.md. A part that was not measured now stays as it was."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import machine, priority

FOLDER = Path(__file__).parents[1]
Part = Mapping[str, Any]
INTRO = """Written by the commands below with `--record`, each part by its own. Ratios are within one run; times depend
on what else the machine does, which each part says."""


def command(module: str) -> str:
    """The line that this process was started with, without where its results go."""
    words = [one for one in sys.argv[1:] if one != "--record"]
    if "--json" in words:
        del words[(at := words.index("--json")) : at + 2]
    return shlex.join([*priority(), "python", "-m", module, *words])


def record(parts: Mapping[str, Part], line: str) -> None:
    """Keeps the parts with the command and the machine that they were measured with, and writes the page anew."""
    file = FOLDER / "GATEWAY.json"
    known: dict[str, Part] = json.loads(file.read_text()) if file.exists() else {}
    known |= {name: {"command": line, "machine": machine(), **part} for name, part in parts.items()}
    file.write_text(json.dumps(known, indent=1) + "\n")
    (FOLDER / "results_gateway.md").write_text(page(known))


def page(known: Mapping[str, Part]) -> str:
    """The page of all parts that there are."""
    lines = ["## Gateway", "", INTRO, ""]
    for name, (title, shown) in SHOWN.items():
        if (part := known.get(name)) is not None:
            lines += [f"### {title}", "", f"    {part['command']}", "", *shown(part), "", f"{part['machine']}.", ""]
    return "\n".join(lines)


def _first_token(part: Part) -> list[str]:
    lines = [
        f"{part['streams']} streams of {part['chunks_per_s']:g} chunks a second; engine, clients and gateway each a "
        f"process. What the gateway adds at the median, bar {part['bar_ms']:g} ms; each figure the median of the "
        "rounds, with the lowest and the highest.", "",
        "| | p50 | p99 | added to p50 | |", "|---|---:|---:|---:|---|",
    ]  # fmt: skip
    titles = {
        "direct": "direct", "direct_tls": "direct with TLS", "gateway": "gateway",
        "tls_and_key": "gateway with TLS and a key",
    }  # fmt: skip
    for name, title in titles.items():
        one = part[name]
        row = f"| {title} | {_spread(one['p50_ms'])} | {_spread(one['p99_ms'])} |"
        added = [
            f"{row} {_spread(more['p50_ms_of_rounds'])} over {titles[against]} | {_verdict(more['met'])} |"
            for against, more in one.get("added", {}).items()
        ]
        lines += added or [f"{row} | |"]
    return lines


def _departures(part: Part) -> list[str]:
    ends = {name: f"{count:,}" for name, count in part["outcomes"].items()}
    left = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in part["left"].items())
    return [
        f"{part['requests']:,} streamed requests (seed {part['seed']}) of 100 clients to two engines of 8 lanes, queue "
        "of 30, 300 programs; six in ten clients leave at a random moment, the engines break off now and then. "
        f"{ends['whole']} whole answers, {ends['left']} left, {ends['refused']} refused with 429, {ends['broken']} "
        f"told that their stream broke off. Left behind, bar nothing: {_verdict(part['met'])} ({left})."
    ]


def _programs(part: Part) -> list[str]:
    alone, ours = part["alone"], part["gateway"]
    memory = f", {part['kv_tokens']:,} tokens of KV memory in blocks of {part['block']}" if "kv_tokens" in part else ""
    sizes = ""
    if "prompt_tokens" in alone:
        least, most = alone["prompt_tokens"]
        sizes = f"; prompts of {least:,} to {most:,} tokens, answers of {alone['answer_tokens']:g}"
    turns, again = part["turns_ratio"], part["recomputed_share"]
    return [
        f"{part['engine']}{memory}: alone, then behind the gateway. {part['programs']} programs of {part['turns']} "
        f"turns, a tool of 0.2 s between two{sizes}.", "",
        "| | alone | gateway | ratio | bar | |", "|---|---:|---:|---:|---|---|",
        f"| turns per minute | {alone['turns_per_min']} | {ours['turns_per_min']} | {turns:.2f} | at least 1.3 "
        f"| {_verdict(turns >= 1.3)} |",
        f"| prompt tokens computed again | {alone['recomputed_tokens']:,} | {ours['recomputed_tokens']:,} "
        f"| {again:.2f} | at most 0.5 | {_verdict(again <= 0.5)} |",
    ]  # fmt: skip


SHOWN: dict[str, tuple[str, Callable[[Part], list[str]]]] = {
    "first-token": ("Time to the first token", _first_token),
    "departures": ("Clients that leave", _departures),
    "programs": ("llama-server, whose memory holds some of the programs only", _programs),
    "vllm": ("vLLM on a CPU, the same", _programs),
}


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
