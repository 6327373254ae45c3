"""Who asked what when, and when the local model worked for whom: written in a run, read for figures and drawing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Ask", "Journal", "LocalCall"]

Outcome = Literal["open", "answered", "failed", "cut"]


@dataclass(slots=True)
class Ask:
    """One question to an agent. Seconds since the start of the run; `error` names what it failed with."""

    agent: str
    number: int
    asked_s: float
    ended_s: float = 0.0
    outcome: Outcome = "open"
    error: str = ""
    refused: bool = False
    """Failed because the provider refused it for its rate."""


@dataclass(slots=True)
class LocalCall:
    """One call at work on the local model. `ended_s` is None while it is."""

    agent: str
    began_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class Journal:
    """The record of one run. All writing is done in the run's event loop."""

    started: float = field(default_factory=time.monotonic)
    asks: list[Ask] = field(default_factory=list)
    local_calls: list[LocalCall] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.started

    @contextmanager
    def local_call(self, agent: str) -> Iterator[None]:
        call = LocalCall(agent, self.now())
        self.local_calls.append(call)
        try:
            yield
        finally:
            call.ended_s = self.now()

    @property
    def open_local_calls(self) -> int:
        return sum(call.ended_s is None for call in self.local_calls)
