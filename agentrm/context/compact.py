"""How does a history that is too long become one that fits, without losing what matters?

In one batch, down to a target: between two batches the list only grows, which keeps the provider's prefix
cache. What must stay (system text, pinned messages, the newest request, open calls) stays byte for byte.
The newest steps stay, with oversized tool results cut to head, tail and key lines. Of the rest, groups and
passages stay by expected uses per token (`worth`, `select`); of what goes, facts and passages remain as
notes (`digest`), or a model writes them (`summarize`). Cuts happen only between groups, so PAIR holds.
Signed reasoning behind the first change goes whole: its signature would no longer fit.

Nothing here deletes anything: the full history is the session's tier 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrm.context.batch import Batch
from agentrm.context.digest import Line
from agentrm.context.embed import Embedder, choose_embedder
from agentrm.context.groups import Group
from agentrm.context.keyinfo import Fact, extract
from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls
from agentrm.context.result import CompactionResult
from agentrm.context.similarity import VectorCache
from agentrm.context.summarize import Summarizer
from agentrm.context.tokens import TokenCounter
from agentrm.context.worth import Index

_REMEMBERED = 20_000  # messages


class Compactor:
    """Compacts histories for one model. Thread-safe; keeps counts, facts and vectors of messages it has seen.

    `embedder` is one, None for none, or "auto" for the best installed. Without a `summarizer` (one,
    or the name of one, such as `local`) no model is called.
    """

    def __init__(
        self,
        counter: TokenCounter | None = None,
        *,
        embedder: Embedder | str | None = "auto",
        summarizer: Summarizer | str | None = None,
        vectors: VectorCache | None = None,
    ) -> None:
        self.counter = counter or TokenCounter()
        if isinstance(summarizer, str):
            from agentrm.context.summarizers import load_summarizer

            summarizer = load_summarizer(summarizer, self.counter)
        self.summarizer = summarizer
        self._embedder = embedder
        self._vectors = vectors
        self._facts: dict[Message, list[Fact]] = {}
        self._index: tuple[tuple[tuple[Message, ...], tuple[Line, ...]], Index] | None = None

    def compact(
        self,
        messages: Sequence[Message],
        target: int,
        *,
        query: str | None = None,
        open_calls: OpenCalls | None = None,
        keep_last: int | None = None,
        tools: Sequence[Any] = (),
    ) -> CompactionResult:
        """A list of at most `target` tokens, tool schemas included. A list that fits comes back repaired,
        else as it is. Raises ConfigError for a target or a `keep_last` that is no number of 0 or more.

        `query` is the next request, if known: what it needs is kept first. `keep_last` keeps the groups of
        the last n messages and nothing else of the rest, as simpler trimmers do; the target still holds.
        """
        return Batch(self, messages, target, query, open_calls, keep_last, tools).result()

    def facts(self, message: Message) -> list[Fact]:
        """The facts of a message, found once."""
        known = self._facts.get(message)
        if known is None:
            if len(self._facts) >= _REMEMBERED:
                self._facts.clear()
            known = self._facts[message] = extract(message)
        return known

    def index(self, groups: Sequence[Group], lines: Sequence[Line] = ()) -> Index:
        """The index of a history; the last one is remembered, for a history that is asked several times."""
        key = (tuple(m for g in groups for m in g.messages), tuple(lines))
        known = self._index
        if known is not None and known[0] == key:
            return known[1]
        made = Index(groups, self.vector_cache(), lines)
        self._index = (key, made)
        return made

    def vector_cache(self) -> VectorCache | None:
        if self._vectors is None and self._embedder is not None:
            chosen = choose_embedder() if isinstance(self._embedder, str) else self._embedder
            self._vectors = VectorCache(chosen)
        return self._vectors
