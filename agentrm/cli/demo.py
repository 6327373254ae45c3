"""`agentrm demo`: the same agents without agentrm and with it, offline, measured, in under three minutes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.demo.scenario import FRAMEWORKS, Scenario, full, quick
from agentrm.errors import AgentRMError

if TYPE_CHECKING:
    from rich.console import Console

    from agentrm.demo.measures import Figures
    from agentrm.demo.runner import Taken

__all__ = ["add_parser", "run"]

DEFAULT_SEED = 7
NEEDED = ("rich", "langchain", "langgraph", "langchain_openai", "torch", "tokenizers", "uvicorn")
BESIDES = {"langchain": (), "autogen": ("autogen_agentchat", "autogen_ext", "tiktoken"), "crewai": ("crewai",)}
"""What the agents of a framework need beside that."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="real agents on a local model, without and with agentrm",
        description="Runs agents on a local model and on a provider on 127.0.0.1 that limits, refuses, "
        "stalls and hangs; first without agentrm, then with it; same seed, same work. No network, no keys.",
    )
    parser.add_argument(
        "--framework",
        choices=(*FRAMEWORKS, "all"),
        default=FRAMEWORKS[0],
        help="whose agents work on the provider; all: the three beside each other (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures of both runs")
    parser.add_argument("--timeline", metavar="FILE", help="draw who held which lane when (.svg or .html)")
    parser.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, help="of the questions and the faults (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds, a model without weights: shows that all works, no figures"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 if both runs came to their end; whether the promises were kept is printed, not returned."""
    from agentrm.demo.timeline import check_ending, save

    if arguments.timeline is not None:
        check_ending(arguments.timeline)
    frameworks = FRAMEWORKS if arguments.framework == "all" else (arguments.framework,)
    _require(frameworks)
    from rich.console import Console

    started = time.monotonic()
    console = Console()
    scenario = replace((quick if arguments.quick else full)(arguments.seed), frameworks=frameworks)
    with _quiet():
        without, with_ = _both(console, scenario)
    _report(console, scenario, without, with_, arguments.quick)
    if arguments.json is not None:
        _write_json(arguments.json, scenario, without, with_)
        console.out(f"figures: {arguments.json}", highlight=False)
    if arguments.timeline is not None:
        save(arguments.timeline, without, with_)
        console.out(f"timeline: {arguments.timeline}", highlight=False)
    console.print(f"[dim]seed {scenario.seed}, {time.monotonic() - started:.0f} s in all[/]", highlight=False)
    return 0


def _both(console: Console, scenario: Scenario) -> tuple[Taken, Taken]:
    named = ", ".join(scenario.frameworks)
    console.print(f"Loading {named} and the local model {scenario.local_model} ...", highlight=False)
    from agentrm.demo.progress import RunProgress
    from agentrm.demo.runner import run_once, warm_up

    model = warm_up(scenario)
    console.print(_story(scenario), highlight=False)
    with RunProgress(console, "Without agentrm", scenario) as shown:
        without = run_once(scenario, with_agentrm=False, show=shown)
    with RunProgress(console, "With agentrm", scenario) as shown:
        with_ = run_once(scenario, with_agentrm=True, show=shown)
    del model  # kept until here, so that both runs find it loaded
    return without, with_


def _story(s: Scenario) -> str:
    return (
        f"A person asks an assistant {s.questions} questions, one every {s.every_s:g} s; it asks sub-agents. "
        f"{s.indexers} indexers and {s.sorters} sorters work in the background.\n"
        f"The hosted model (on 127.0.0.1) has {s.provider_lanes} lanes and takes {s.requests} requests in "
        f"{s.per_s:g} s; of its calls {s.hang + s.stall:.0%} hang or stall. The local model has this CPU.\n"
        f"In both runs the client's time-out is {s.client_timeout_s:g} s and LangChain's ModelRetryMiddleware, or the "
        f"client in AutoGen and CrewAI, retries {s.retries} times."
    )


def _report(console: Console, scenario: Scenario, without: Taken, with_: Taken, quick_run: bool) -> None:
    from agentrm.demo.measures import bars
    from agentrm.demo.table import print_bars, print_table

    a, b = _figures(without, with_)
    console.print()
    print_table(console, a, b)
    console.print()
    if quick_run:
        console.print("A quick run shows that all works. For figures run it without --quick.", highlight=False)
    else:
        print_bars(console, bars(scenario, a, b))


def _figures(without: Taken, with_: Taken) -> tuple[Figures, Figures]:
    from agentrm.demo.measures import figures

    return figures(without), figures(with_)


def _write_json(path: str, scenario: Scenario, without: Taken, with_: Taken) -> None:
    a, b = _figures(without, with_)
    whole = {"seed": scenario.seed, "without": a.as_json(), "with": b.as_json()}
    Path(path).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def _require(frameworks: Sequence[str]) -> None:
    wanted = [*NEEDED, *(name for framework in frameworks for name in BESIDES[framework])]
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        extras = ",".join(["demo", *(framework for framework in frameworks if framework != FRAMEWORKS[0])])
        more = " 'autogen-ext[openai]'" if "autogen" in frameworks else ""
        told = f"the demo needs {', '.join(missing)}, not installed here"
        raise AgentRMError(f"{told}: pip install 'agentrm[{extras}]'{more}")


@contextmanager
def _quiet() -> Iterator[None]:
    """No telemetry, no hub, and no warnings of the clients about the time-outs that the demo is about."""
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false", OTEL_SDK_DISABLED="true")
    os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_DISABLE_TRACKING="true", CREWAI_TRACING_ENABLED="false")
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    loggers = [logging.getLogger(name) for name in (None, "crewai", "langchain_openai")]  # CrewAI logs to the root
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
