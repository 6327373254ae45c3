"""Draws who held which lane when, in both runs on one scale, as one SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from agentrm.demo.measures import Figures, figures, hung
from agentrm.demo.runner import Taken
from agentrm.demo.scenario import role_of
from agentrm.errors import ConfigError

__all__ = ["FORMATS", "draw", "save"]

FORMATS = (".svg", ".html")

_WIDTH, _LEFT, _RIGHT = 1200, 168, 24
_LANE, _THIN = 15, 9
_PERSON, _OTHERS, _HUNG, _REFUSED, _FAILED = "#1668c7", "#c3c9d1", "#d3202f", "#e58a00", "#7d1420"
_INK, _FAINT, _LINE, _BAND = "#1d2733", "#5d6875", "#dfe3e8", "#f5f7f9"

_STYLE = f"""
text {{ font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: {_INK}; }}
.head {{ font-size: 17px; font-weight: 600; }} .title {{ font-size: 21px; font-weight: 700; }}
.small {{ font-size: 11.5px; fill: {_FAINT}; }} .on {{ font-size: 10px; fill: #fff; }}
"""


@dataclass(frozen=True, slots=True)
class _Bar:
    began_s: float
    ended_s: float
    colour: str
    note: str
    label: str = ""


def save(path: str, without: Taken, with_: Taken) -> None:
    """Writes the drawing, by the ending of `path` as SVG or as a page of HTML. Raises ConfigError for other endings."""
    check_ending(path)
    svg = draw(without, with_)
    if path.endswith(".html"):
        svg = f'<!doctype html><meta charset="utf-8"><title>agentrm demo</title><body style="margin:16px">{svg}</body>'
    Path(path).write_text(svg, encoding="utf-8")


def check_ending(path: str) -> None:
    """Raises ConfigError unless `path` ends as one of FORMATS."""
    if not path.endswith(FORMATS):
        raise ConfigError("--timeline", path, f"a file name that ends with {' or '.join(FORMATS)}")


def draw(without: Taken, with_: Taken) -> str:
    """The whole drawing as SVG."""
    end = max(without.ended_s, with_.ended_s)
    scale = (_WIDTH - _LEFT - _RIGHT) / (math.ceil(end / 5) * 5)
    parts = [_legend()]
    y = 96.0
    for title, taken in (("Without agentrm", without), ("With agentrm", with_)):
        panel, height = _panel(title, taken, figures(taken), scale, y)
        parts.append(panel)
        y += height + 26
    frame = f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#fff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}" '
        f'role="img" aria-label="Who held which lane when, without and with agentrm">'
        f"<style>{_STYLE}</style>{frame}{''.join(parts)}</svg>\n"
    )


def _legend() -> str:
    parts = [_text(_LEFT, 32, "The same agents, the same work, the same faults: who held which lane when", "title")]
    x = float(_LEFT)
    for colour, words in (
        (_PERSON, "what the person waits for"),
        (_OTHERS, "background work"),
        (_HUNG, "a call that hangs"),
        (_REFUSED, "a refusal (429)"),
        (_FAILED, "not answered"),
    ):
        parts.append(_rect(x, 49, 16, 11, colour) + _text(x + 22, 59, words))
        x += 46 + 7.1 * len(words)
    return "".join(parts)


def _panel(title: str, taken: Taken, f: Figures, scale: float, top: float) -> tuple[str, float]:
    said = (
        f"the person waits {f.person_latency_p50_s:.1f} s (p50), {f.person_latency_p95_s:.1f} s (p95); "
        f"{f.person_answered} of {f.person_asked} questions, {f.others_answered} of {f.others_asked} background jobs "
        "answered"
    )
    parts = [_text(_LEFT, top + 2, title, "head"), _text(_LEFT + 172, top + 2, said)]
    y = top + 14
    sections = (
        ("the person's questions", "asked until answered", _questions(taken), _THIN, False),
        ("hosted model", f"{taken.scenario.provider_lanes} lanes", _hosted(taken), _LANE, True),
        ("local model", "calls at work at once", _local(taken), _LANE - 3, True),
    )
    end = top
    grid: list[str] = []
    for name, about, bars, height, is_lane in sections:
        rows = _rows(bars)
        tall = max(len(rows) * height, 28) + 8
        parts.append(_rect(_LEFT, y, _WIDTH - _LEFT - _RIGHT, tall, _BAND))
        parts.append(_text(_LEFT - 10, y + 15, name, end=True) + _text(_LEFT - 10, y + 29, about, "small", end=True))
        grid += [_bar(bar, _LEFT, y + 4 + n * height, height - 2, scale) for n, row in enumerate(rows) for bar in row]
        y += tall + 5
        if is_lane and name == "hosted model":
            marks, more = _refusals(taken, y, scale)
            parts.append(_text(_LEFT - 10, y + 9, f"refused {more}", "small", end=True))
            grid.append(marks)
            y += 17
        end = y
    parts.append(_axis(top + 14, end, scale))
    return "".join(parts) + "".join(grid), end + 18 - top


def _questions(taken: Taken) -> list[_Bar]:
    bars = []
    for ask in taken.journal.asks:
        if role_of(ask.agent) == "person":
            waited = ask.ended_s - ask.asked_s
            colour = _PERSON if ask.outcome == "answered" else _FAILED
            note = f"question {ask.number + 1}: {ask.outcome} after {waited:.1f} s {ask.error}"
            bars.append(_Bar(ask.asked_s, ask.ended_s, colour, note))
    return bars


def _hosted(taken: Taken) -> list[_Bar]:
    bars = []
    for request in taken.requests:
        if request.taken_up_s is None or request.taken_up_s + taken.provider_began_s >= taken.stopped_s:
            continue  # came up only because the end of the run cut off those before it
        began, ended = (at + taken.provider_began_s for at in (request.taken_up_s, request.ended_s))
        agent, held = request.agent or "", ended - began
        label = ""
        if hung(request):
            label = f"{agent.partition('-')[0]} hangs {held:.1f} s" if held > 5 else f"{held:.1f} s"
        colour = _HUNG if hung(request) else _colour(agent)
        bars.append(_Bar(began, ended, colour, f"{agent}: {request.outcome}, {held:.2f} s", label))
    return bars


def _local(taken: Taken) -> list[_Bar]:
    return [
        _Bar(call.began_s, ended, _colour(call.agent), f"{call.agent}: {ended - call.began_s:.2f} s")
        for call in taken.journal.local_calls
        for ended in [taken.ended_s if call.ended_s is None else call.ended_s]
    ]


def _colour(agent: str) -> str:
    return _PERSON if role_of(agent) == "person" else _OTHERS


def _refusals(taken: Taken, y: float, scale: float) -> tuple[str, int]:
    marks = []
    for request in taken.requests:
        if request.outcome in ("rate", "quota"):
            x = _LEFT + (request.arrived_s + taken.provider_began_s) * scale
            marks.append(
                f'<path d="M{x - 4:.1f} {y + 11:.1f}h8l-4-9z" fill="{_REFUSED}">'
                f"<title>{escape(request.agent or '')}: refused</title></path>"
            )
    return "".join(marks), len(marks)


def _rows(bars: Iterable[_Bar]) -> list[list[_Bar]]:
    """As few rows as it takes, none with two bars at once (a hair's breadth aside: two clocks of two processes)."""
    rows: list[list[_Bar]] = []
    for bar in sorted(bars, key=lambda bar: (bar.began_s, bar.ended_s)):
        free = next((row for row in rows if row[-1].ended_s <= bar.began_s + 0.005), None)
        if free is None:
            rows.append([bar])
        else:
            free.append(bar)
    return rows


def _axis(top: float, bottom: float, scale: float) -> str:
    parts = []
    for second in range(0, int((_WIDTH - _LEFT - _RIGHT) / scale) + 1, 5):
        x = _LEFT + second * scale
        parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{_LINE}"/>')
        parts.append(_text(x, bottom + 13, f"{second} s", "small", middle=True))
    return "".join(parts)


def _bar(bar: _Bar, left: float, y: float, height: float, scale: float) -> str:
    x, width = left + bar.began_s * scale, max(1.5, (bar.ended_s - bar.began_s) * scale - 0.6)
    shape = _rect(x, y, width, height, bar.colour, bar.note)
    return shape + (_text(x + 5, y + height - 3, bar.label, "on") if bar.label else "")


def _rect(x: float, y: float, width: float, height: float, colour: str, note: str = "") -> str:
    inside = f"<title>{escape(note)}</title>" if note else ""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="1.5" fill="{colour}">{inside}</rect>'


def _text(x: float, y: float, words: str, kind: str = "", *, end: bool = False, middle: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}{anchor}>{escape(words)}</text>'
