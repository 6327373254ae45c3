"""The report of the context benchmarks says by itself which bars were missed, and the command runs what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrm.evaluation.synthetic import SESSION_KINDS
from benchmarks import context
from benchmarks.context_report import report

BLIND = {"agentrm": 0.9, "agentrm-no-faiss": 0.85, "keep-last": 0.2, "idf": 0.4, "belady": 0.95}
ASKED = {"agentrm": 0.99, "agentrm-no-faiss": 0.95, "bm25": 0.7, "belady": 1.0}


def talk() -> list[dict[str, Any]]:
    known = {False: BLIND, True: ASKED}
    return [
        {"method": m, "budget": b, "query_known": k, "category": c, "evidence": e}
        for k, methods in known.items()
        for m, e in methods.items()
        for b in (0.1, 0.25, 0.5)
        for c in ("all", "multi-hop")
    ]


def run(method: str, limit: float) -> dict[str, Any]:
    figures = {"invalid": 0.0, "carried": 0.995, "prefill_again_tokens": 9000.0, "compactions": 2.0}
    return {"method": method, "limit": limit, "trajectories": 3, **figures}


def session(kind: str, method: str, paper: object) -> dict[str, Any]:
    figures = {"utilisation": 0.4, "retention": 1.0, "retention_foreign": 1.0, "quality": 0.96, "cost_tokens": 0}
    return {"session": kind, "method": method, "paper": paper, **figures}


def found() -> dict[str, Any]:
    """Everything that the command keeps, every bar met."""
    speed = [("compact talk, with embeddings", 700.0), ("append, fsync never", 0.1), ("restore, all as objects", 200.0)]
    ours = ("agentrm", "agentrm-no-faiss")
    parts: dict[str, Any] = {
        "locomo": {"embedder": "e", "results": talk()},
        "unseen": {
            "data": {"conversations": 5, "messages": 2760, "questions": 997},
            "results": {"blind words only 0.1": 0.3, "blind words only 0.25": 0.5},
        },
        "mini-swe": {"embedder": "e", "results": [run(m, 16000) for m in ours]},
        "tau-bench": {"embedder": "e", "results": [run(m, 0.5) for m in ours]},
        "synthetic": {"results": [session(k.name, m, k.paper.get(m)) for k in SESSION_KINDS for m in ours]},
        "needles": {"results": {"method": "m", "tokens": 1000, "needles": 10, "kept": 4, "held": 0.2}},
        "speed": {
            "machine": "m",
            "results": [{"name": n, "value": v, "unit": "ms", "detail": ""} for n, v in speed],
        },
    }
    return {name: {"command": ["do", name], **part} for name, part in parts.items()}


def test_bars_that_are_met_are_said_to_be_met():
    text, bars = report(found())
    assert [b.name for b in bars if not b.met] == []
    assert "missed" not in text


@pytest.mark.parametrize(
    ("part", "row", "change", "bar"),
    [
        ("mini-swe", 0, {"invalid": 0.0001}, "mini-swe, agentrm: no invalid list"),
        ("tau-bench", 1, {"carried": 0.9899}, "tau-bench, agentrm-no-faiss: at least 99% carried"),
        ("mini-swe", 0, {"prefill_again_tokens": 33_001}, "mini-swe, agentrm: at most 33,000 tokens read again"),
        ("synthetic", 0, {"retention": 0.999}, "50-turn, agentrm: all kept"),
        ("synthetic", 0, {"utilisation": 0.99}, "50-turn, agentrm: all kept"),
        ("synthetic", 2, {"cost_tokens": 1}, "100-turn, agentrm: all kept"),
        ("speed", 0, {"value": 1000.0}, "compact talk, with embeddings"),
        ("speed", 1, {"value": 1.0}, "a message added"),
        ("speed", 2, {"value": 300.0}, "10,000 messages restored"),
    ],
)
def test_a_figure_below_its_bar_is_printed_as_missed(part: str, row: int, change: dict[str, float], bar: str):
    changed = found()
    changed[part]["results"][row] |= change
    text, bars = report(changed)
    missed = [b.name for b in bars if not b.met]
    assert len(missed) == 1 and missed[0].startswith(bar)
    assert f"| {missed[0]} | **missed** |" in text


def test_evidence_is_held_against_the_best_of_the_simple_methods():
    changed = found()
    for row in changed["locomo"]["results"]:
        if row["method"] == "idf":
            row["evidence"] = BLIND["agentrm"] - 0.05
    missed = [b for b in report(changed)[1] if not b.met]
    assert [b.found for b in missed] == ["+5.0"] * 3
    assert all("best simple method (idf)" in b.name for b in missed)


def test_a_part_is_measured_once_and_again_when_its_command_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    monkeypatch.setattr(context.Parts, "measure", lambda self, name: asked.append(name))
    file, target = tmp_path / "found.json", tmp_path / "results.md"
    commands = context.Parts(tmp_path, file, tmp_path / "v").commands()
    known = {name: {**part, "command": commands[name]} for name, part in found().items()}
    file.write_text(json.dumps({**known, "speed": {**known["speed"], "command": ["another"]}}))
    options = ["--data", str(tmp_path), "--json", str(file), "--report", str(target)]
    context.main(options)
    assert asked == ["speed"] and not target.exists()
    file.write_text(json.dumps(known))
    context.main(options)
    assert asked == ["speed"] and "**missed**" not in target.read_text()
    context.main([*options, "--part", "needles"])
    assert asked == ["speed", "needles"]
