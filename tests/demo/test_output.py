"""What a reader sees: the table and the progress, in plain text where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from agentrm.demo.measures import bars, figures
from agentrm.demo.progress import RunProgress
from agentrm.demo.runner import Sighting
from agentrm.demo.table import print_bars, print_table, rows
from tests.demo.records import SCENARIO, a_run


def on(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=110, legacy_windows=False), out


def test_the_table_is_plain_text_without_a_terminal() -> None:
    console, out = on(False)
    both = figures(a_run())
    print_table(console, both, both)
    text = out.getvalue()
    assert text.isascii() and "\x1b" not in text
    assert "28.0 s" in text and "hung calls" in text
    assert len({len(line) for line in text.splitlines()}) == 1, "columns are aligned"


def test_a_terminal_gets_the_same_rows() -> None:
    console, out = on(True)
    both = figures(a_run())
    print_table(console, both, both)
    for name, _, _ in rows(both, both):
        assert name in out.getvalue()


def test_a_missed_bar_says_so() -> None:
    console, out = on(False)
    both = figures(a_run())
    print_bars(console, bars(SCENARIO, both, both))
    assert "MISSED  the person's p95 is at most a fifth: 1.0 times less" in out.getvalue()
    assert "kept    no lane is leaked: 0" in out.getvalue()


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    console, out = on(False)
    with RunProgress(console, "Without agentrm", SCENARIO) as show:
        for quarter in range(48):
            show(Sighting(quarter / 4, tuple(a_run().journal.asks), 1, 2, 3))
    lines = [line for line in out.getvalue().splitlines() if " s: " in line]
    assert len(lines) == 2
    assert "person 2/3, background 1/3" in lines[0]


def test_progress_on_a_terminal_moves() -> None:
    console, out = on(True)
    with RunProgress(console, "Without agentrm", SCENARIO) as show:
        show(Sighting(1.0, tuple(a_run().journal.asks), 1, 2, 3))
    assert "2/3" in out.getvalue()
