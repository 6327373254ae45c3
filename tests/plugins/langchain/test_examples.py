"""The examples run, against a loopback provider, as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(name: str, provider: StubProvider) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "none-needed"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    mine = {path.name for path in EXAMPLES.glob("langchain_*.py")}
    assert mine == {"langchain_priority.py", "langchain_graph.py"}


@pytest.mark.slow
def test_the_person_does_not_wait_for_the_background() -> None:
    with StubProvider(Behaviour(service_s=0.1)) as provider:
        words = run("langchain_priority.py", provider).split()
        assert provider.peak_concurrency <= 2
    person, last = (float(word) for word in words if word.replace(".", "").isdigit())
    assert person < last / 2


def test_the_graph_calls_its_tool_through_the_gate() -> None:
    def plan(request: StubRequest) -> Behaviour:
        return Behaviour(tool_calls=(ToolCall("population", {"city": "Oslo"}),), text="0.7 million")

    with StubProvider(plan) as provider:
        out = run("langchain_graph.py", provider)
    assert "0.7 million" in out
    assert "{'default': (2, 0), 'tools': (1, 0)}" in out
