"""What a session asks of a compaction, and what a search finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls
from agentrm.context.result import CompactionResult

__all__ = ["Compactor", "Counter", "Hit", "default_compactor"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a message id, how well it fits (higher is better), when it was added."""

    id: str
    score: float
    role: str
    at: float


class Counter(Protocol):
    """Counts tokens as the model does."""

    def messages(self, messages: Sequence[Message]) -> int:
        """Tokens of the list as it is sent."""


class Compactor(Protocol):
    """Makes a history fit: `agentrm.context.compact.Compactor`, or whatever has its two members."""

    @property
    def counter(self) -> Counter: ...

    def compact(
        self,
        messages: Sequence[Message],
        target: int,
        *,
        query: str | None = None,
        open_calls: OpenCalls | None = None,
    ) -> CompactionResult:
        """A valid list of at most `target` tokens; one that fits comes back as it is."""


def default_compactor() -> Compactor:
    """The one of agentrm: extractive, no model call. Made when the first context is asked for."""
    from agentrm.context.compact import Compactor as Extractive

    return Extractive()
