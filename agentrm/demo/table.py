"""The one table that a run of the demo ends with, and whether what is promised was kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentrm.demo.measures import Bar, Figures

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_bars", "print_table", "rows"]

Row = tuple[str, str, str]
HEADINGS: Row = ("", "without agentrm", "with agentrm")


def rows(without: Figures, with_: Figures) -> Iterator[Row]:
    """What is shown of the figures: name, without, with."""
    both = (without, with_)

    def row(name: str, show: str) -> Row:
        a, b = (show.format(f=f) for f in both)
        return name, a, b

    yield row("the person's answers: latency p50", "{f.person_latency_p50_s:.1f} s")
    yield row("the person's answers: latency p95", "{f.person_latency_p95_s:.1f} s")
    yield row("background jobs: latency p50", "{f.others_latency_p50_s:.1f} s")
    yield row("background jobs: latency p95", "{f.others_latency_p95_s:.1f} s")
    yield row("the person's questions answered", "{f.person_answered} of {f.person_asked}")
    yield row("background jobs answered", "{f.others_answered} of {f.others_asked}")
    yield row("failed", "{f.failed}")
    yield row("  refused until they gave up", "{f.failed_refused}")
    yield row("  not answered when the run was ended", "{f.unfinished}")
    yield row("refusals (429) seen", "{f.http_429} in {f.requests} requests")
    yield row("hung calls", "{f.hung_calls}")
    yield row("lanes they held, in all", "{f.hung_lane_s:.1f} s")
    yield row("longest silence before a lane was free", "{f.hung_silence_longest_s:.2f} s")
    yield row("healthy calls given up by a time-out", "{f.healthy_given_up}")
    yield row("lanes leaked", "{f.lanes_leaked}")
    yield row("the whole run took", "{f.took_s:.1f} s")


def print_table(console: Console, without: Figures, with_: Figures) -> None:
    found = list(rows(without, with_))
    if not console.is_terminal:
        widths = [max(len(row[i]) for row in (HEADINGS, *found)) for i in range(3)]
        for row in (HEADINGS, *found):
            console.out(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}", highlight=False)
        return
    from rich.table import Table

    table = Table(HEADINGS[0], show_edge=False, pad_edge=False)
    table.add_column(HEADINGS[1], justify="right", style="red")
    table.add_column(HEADINGS[2], justify="right", style="green")
    for name, a, b in found:
        is_main = name.startswith("the person's answers: latency p95")
        table.add_row(name, a, b, style="bold" if is_main else None)
    console.print(table)


def print_bars(console: Console, found: list[Bar]) -> None:
    for bar in found:
        word, colour = ("kept", "green") if bar.met else ("MISSED", "bold red")
        console.print(f"  [{colour}]{word:<6}[/]  {bar.claim}: {bar.found}", highlight=False, soft_wrap=True)
