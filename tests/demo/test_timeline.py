"""The drawing shows both runs, hung calls in red, every refusal, and needs nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from agentrm.demo.timeline import draw, save
from agentrm.errors import ConfigError
from tests.demo.records import a_run, ask, taken

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE = "#d3202f", "#1668c7"


def bars(svg: str, colour: str) -> list[str]:
    """The notes of the bars of a colour; the legend's have none."""
    found = [rect for rect in ET.fromstring(svg).iter(f"{SVG}rect") if rect.get("fill") == colour]
    return [note.text or "" for rect in found for note in rect.iter(f"{SVG}title")]


def test_hung_calls_are_red_and_no_others() -> None:
    assert sorted(bars(draw(a_run(), taken([], [])), RED)) == ["assistant: stalled, 5.00 s", "indexer-1: hung, 3.00 s"]


def test_what_the_person_waits_for_is_blue() -> None:
    notes = bars(draw(a_run(), taken([], [])), BLUE)
    assert "reader: 1.00 s" in notes
    assert "assistant: answered, 1.00 s" in notes
    assert not any("sorter" in note or "indexer" in note for note in notes)


def test_every_refusal_has_a_mark() -> None:
    assert draw(a_run(), a_run()).count(": refused</title>") == 2


def test_calls_at_the_same_time_stand_in_different_rows() -> None:
    run = taken([ask("assistant", 0, 10), ask("assistant", 5, 15), ask("assistant", 11, 12)], [])
    found = [r for r in ET.fromstring(draw(run, taken([], []))).iter(f"{SVG}rect") if r.get("fill") == BLUE]
    heights = [float(r.get("y", "")) for r in found if len(r)]
    assert len(set(heights)) == 2 and heights[0] == sorted(heights)[0]


def test_text_from_errors_is_escaped() -> None:
    draw_ok = draw(taken([ask("assistant", 0, 1, "failed", error='<script>&"')], []), a_run())
    assert "<script>" not in draw_ok
    ET.fromstring(draw_ok)


def test_the_file_needs_nothing_else(tmp_path: Path) -> None:
    for ending in (".svg", ".html"):
        path = tmp_path / f"timeline{ending}"
        save(str(path), a_run(), a_run())
        text = path.read_text()
        assert re.findall(r'(?:href|src)=|url\(|@import', text) == []
        assert text.startswith("<svg" if ending == ".svg" else "<!doctype html>")


def test_another_ending_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"\.svg or \.html"):
        save("timeline.png", a_run(), a_run())
