"""Compactors for tests: what they do can be said in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrm.context.messages import SUMMARY, Message, make
from agentrm.context.open_calls import OpenCalls
from agentrm.context.result import CompactionResult


class KeepTwo:
    """A compactor: everything but the last two messages becomes one. A message counts as one token."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self._during = during

    @property
    def counter(self) -> KeepTwo:
        return self

    def messages(self, messages: Sequence[Message]) -> int:
        return len(messages)

    def compact(
        self,
        messages: Sequence[Message],
        target: int,
        *,
        query: str | None = None,
        open_calls: OpenCalls | None = None,
    ) -> CompactionResult:
        self._during()
        summary = make("user", f"summary of {len(messages) - 2} for {query}", flags={SUMMARY})
        kept = (summary, *messages[-2:])
        return CompactionResult(kept, len(messages), 3, target, {}, tuple(m.id for m in messages), summary)
