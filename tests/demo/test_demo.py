"""The whole demo, small: both runs on real LangChain agents, a provider of its own and a model without weights."""

from __future__ import annotations

import json
import multiprocessing
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("langchain_openai")
pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from agentrm.cli.main import main
from agentrm.demo.agents import Access
from agentrm.demo.scenario import quick
from tests.demo.test_measures import KEYS


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["langchain", "autogen", "crewai", "all"])
def test_both_runs_come_to_their_end_and_nothing_is_left(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in {"autogen": ("autogen_ext",), "crewai": ("crewai",), "all": ("autogen_ext", "crewai")}.get(framework, ()):
        pytest.importorskip(package)
    figures, timeline = tmp_path / "figures.json", tmp_path / "timeline.svg"
    asked = ["--quick", "--framework", framework, "--json", str(figures), "--timeline", str(timeline)]
    assert main(["demo", *asked]) == 0
    found = json.loads(figures.read_text())
    for run in ("without", "with"):
        assert set(KEYS) <= set(found[run])
        assert found[run]["answered"] + found[run]["failed"] == quick(7).questions + quick(7).others
    assert found["with"]["lanes_leaked"] == 0
    assert found["with"]["failed_refused"] == 0
    assert found["with"]["hung_calls"] > 0, "the seed has hung calls, so that there is something to show"
    ET.parse(timeline)
    assert "with agentrm" in capsys.readouterr().out
    assert not [process for process in multiprocessing.active_children() if "provider" in process.name]
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrm-generate"]


def test_without_a_manager_the_agents_are_plain() -> None:
    access, model = Access(None), object()
    assert access.model(model, agent="a") is model  # type: ignore[arg-type, comparison-overlap]


def test_a_drawing_that_could_not_be_saved_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--timeline", "timeline.png"]) == 2
    assert ".svg or .html" in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrm.cli.demo.NEEDED", ("langchain", "no_such_package"))
    assert main(["demo"]) == 1
    assert "no_such_package" in (told := capsys.readouterr().err) and "pip install 'agentrm[demo]'" in told
