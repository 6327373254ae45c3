"""What a session asks of a compaction, and what a search finds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls
from agentrm.context.result import CompactionResult
from agentrm.context.tokens import TokenCounter

if TYPE_CHECKING:
    from agentrm.context.compact import Compactor as Extractive

__all__ = ["Compactor", "Counter", "DefaultCompactor", "Hit"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a message id, how well it fits (higher is better), when it was added."""

    id: str
    score: float
    role: str
    at: float


class Counter(Protocol):
    """Counts tokens as the model does."""

    def messages(self, messages: Sequence[Message], /) -> int:
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


class DefaultCompactor:
    """agentrm's extractive compactor for one session; no model call.

    It is made, and its embedder loaded, when something has to be compacted for the first time. `vectors` is
    the file that keeps embeddings from one process to the next, derived from the session and deleted with it;
    None for none.
    """

    def __init__(self, vectors: Path | None) -> None:
        self._path = vectors
        self._lock = threading.Lock()
        self._made: Extractive | None = None
        self.counter = TokenCounter()

    def compact(
        self,
        messages: Sequence[Message],
        target: int,
        *,
        query: str | None = None,
        open_calls: OpenCalls | None = None,
    ) -> CompactionResult:
        """As `agentrm.context.compact.Compactor.compact`."""
        from agentrm.context.compact import Compactor as Extractive
        from agentrm.context.embed import choose_embedder
        from agentrm.context.similarity import VectorCache

        with self._lock:
            if self._made is None:
                cache = VectorCache(choose_embedder(), self._path)
                self._made = Extractive(self.counter, vectors=cache)
        return self._made.compact(messages, target, query=query, open_calls=open_calls)
