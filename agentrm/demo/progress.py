"""What is seen while a run is on: a line that changes on a terminal, one now and then elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from agentrm.demo.runner import Sighting
from agentrm.demo.scenario import Scenario, role_of

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["RunProgress"]

_EVERY_S = 5.0


class RunProgress:
    """A context manager round one run; call it with each sighting."""

    def __init__(self, console: Console, title: str, scenario: Scenario) -> None:
        self._console, self._title, self._scenario = console, title, scenario
        self._said_s = 0.0
        self._bars = None
        if console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self._bars = Progress(
                TextColumn("{task.description:<12}"), BarColumn(30), TextColumn("{task.completed}/{task.total}"),
                TextColumn("[dim]{task.fields[note]}"), console=console,
            )  # fmt: skip
            self._person = self._bars.add_task("  person", total=scenario.questions, note="")
            self._others = self._bars.add_task("  background", total=scenario.others, note="")

    def __enter__(self) -> RunProgress:
        self._console.print(f"\n[bold]{self._title}[/]", highlight=False)
        if self._bars is not None:
            self._bars.start()
        return self

    def __call__(self, seen: Sighting) -> None:
        answered = [ask for ask in seen.asks if ask.outcome == "answered"]
        person = sum(role_of(ask.agent) == "person" for ask in answered)
        waiting = [ask for ask in seen.asks if ask.outcome == "open" and role_of(ask.agent) == "person"]
        longest = max((seen.seconds - ask.asked_s for ask in waiting), default=0.0)
        patience = f"the person waits for {len(waiting)}, up to {longest:.0f} s"
        provider = f"{seen.refused} refused, {seen.hung} hung and closed, {seen.open_requests} open"
        if self._bars is not None:
            self._bars.update(self._person, completed=person, note=patience)
            self._bars.update(self._others, completed=len(answered) - person, note=f"{provider}, {seen.seconds:.0f} s")
        elif seen.seconds - self._said_s >= _EVERY_S:
            self._said_s = seen.seconds
            others = f"background {len(answered) - person}/{self._scenario.others}"
            done = f"person {person}/{self._scenario.questions}, {others}"
            self._console.out(f"  {seen.seconds:3.0f} s: {done}; {patience}; {provider}", highlight=False)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
