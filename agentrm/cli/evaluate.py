"""`agentrm evaluate`: what compaction keeps, of public data sets or of one's own logs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentrm.errors import ConfigError

_LOG_EVERY_S = 10.0
_DEFAULT_TALK = "keep-last,idf,bm25,agentrm"
_DEFAULT_RUNS = "keep-last,langchain-trim,agentrm"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate", help="what compaction would keep of conversations and agent runs", description=__doc__
    )
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    talk = kinds.add_parser("context", help="evidence that later questions need, in annotated conversations")
    talk.add_argument("--dataset", required=True, help="file, plain or .gz")
    talk.add_argument(
        "--format", choices=("locomo", "conversation"), default="conversation", help="default: %(default)s"
    )
    talk.add_argument("--budget", default="0.1,0.25,0.5", help="shares of the conversation's tokens")
    runs = kinds.add_parser(
        "trajectories", help="validity, carried arguments and prompt tokens of agent runs"
    )
    runs.add_argument("--dataset", required=True, help="JSON lines with OpenAI-format messages, plain or .gz")
    runs.add_argument("--limit", type=float, default=16000, help="tokens; up to 1: share of each run")
    runs.add_argument("--low", type=float, help="share of the limit that a compaction goes down to")
    paper = kinds.add_parser("synthetic", help="the four synthetic sessions of the AgentRM paper")
    paper.add_argument("--seeds", type=int, default=3, help="sessions per kind (default 3)")
    for sub, default in (
        (talk, _DEFAULT_TALK),
        (runs, _DEFAULT_RUNS),
        (paper, "none,fifo,sliding,agentrm,agentrm-no-faiss"),
    ):
        about = f"names with commas between (default {default}; all: docs/context.md)"
        sub.add_argument("--method", default=default, help=about)
        sub.add_argument("--json", metavar="FILE", help="also write the results as JSON")
        sub.add_argument("--vectors", metavar="FILE", help="SQLite file that keeps embeddings between runs")
        sub.add_argument("--quiet", action="store_true", help="no progress on standard error")


def run(arguments: argparse.Namespace) -> int:
    methods = [m.strip() for m in arguments.method.split(",") if m.strip()]
    if arguments.what == "context":
        rows, table = _context(arguments, methods)
    elif arguments.what == "trajectories":
        rows, table = _trajectories(arguments, methods)
    else:
        rows, table = _synthetic(arguments, methods)
    print(table)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(
                {"what": arguments.what, "dataset": getattr(arguments, "dataset", None), "results": rows},
                file,
                indent=1,
            )
    return 0


def _progress(arguments: argparse.Namespace) -> Callable[[str], None] | None:
    """Where the work is: in one line of a terminal, elsewhere now and then a line."""
    if arguments.quiet:
        return None
    if sys.stderr.isatty():
        return lambda text: print(f"\r{text:60.60}", end="", file=sys.stderr, flush=True)
    said = float("-inf")

    def say(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _LOG_EVERY_S:
            said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say


def _check(methods: Sequence[str], known: Sequence[str]) -> None:
    unknown = [m for m in methods if m not in known]
    if unknown or not methods:
        raise ConfigError("--method", ",".join(unknown), ", ".join(known))


def _context(arguments: argparse.Namespace, methods: list[str]) -> tuple[list[dict[str, Any]], str]:
    from agentrm.evaluation import conversations, report
    from agentrm.evaluation.datasets import read_conversations
    from agentrm.evaluation.methods import METHODS

    _check(methods, METHODS)
    try:
        budgets = [float(b) for b in arguments.budget.split(",")]
    except ValueError:
        budgets = []
    if not budgets or not all(0 < b <= 1 for b in budgets):
        raise ConfigError("--budget", arguments.budget, "shares above 0 and up to 1, with commas between")
    data = read_conversations(arguments.dataset, arguments.format)
    rows = conversations.evaluate(
        data, methods, budgets, vectors=arguments.vectors, progress=_progress(arguments)
    )
    return [r.to_json() for r in rows], report.context_table(rows, data)


def _trajectories(arguments: argparse.Namespace, methods: list[str]) -> tuple[list[dict[str, Any]], str]:
    from agentrm.evaluation import report, trajectories
    from agentrm.evaluation.datasets import read_trajectories
    from agentrm.evaluation.methods import METHODS

    _check(methods, METHODS)
    if not 0 < arguments.limit < float("inf"):
        raise ConfigError("--limit", arguments.limit, "tokens, or a share up to 1")
    if arguments.low is not None and not 0 < arguments.low <= 1:
        raise ConfigError("--low", arguments.low, "a share above 0 and up to 1")
    data = read_trajectories(arguments.dataset)
    rows = trajectories.evaluate(
        data,
        methods,
        arguments.limit,
        low=arguments.low,
        vectors=arguments.vectors,
        progress=_progress(arguments),
    )
    return [r.to_json() for r in rows], report.trajectory_table(rows)


def _synthetic(arguments: argparse.Namespace, methods: list[str]) -> tuple[list[dict[str, Any]], str]:
    from agentrm.context.embed import choose_embedder
    from agentrm.context.similarity import VectorCache
    from agentrm.evaluation import report, synthetic_run

    if arguments.seeds < 1:
        raise ConfigError("--seeds", arguments.seeds, "a whole number of at least 1")
    _check(methods, ("none", "fifo", "sliding", "agentrm", "agentrm-no-faiss"))
    cache = VectorCache(choose_embedder(), arguments.vectors) if "agentrm" in methods else None
    rows = synthetic_run.evaluate(
        methods, seeds=range(arguments.seeds), cache=cache, progress=_progress(arguments)
    )
    return [r.to_json() for r in rows], report.synthetic_table(rows)
