"""What a session asks of a compaction, and what it gets back; who implements it is the user's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls

__all__ = ["Compacted", "CompactionTask", "Compactor", "Hit"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a message id, how well it fits (higher is better), when it was added."""

    id: str
    score: float
    role: str
    at: float


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """What is to be made small: `messages` is tier 0, valid; `recall` reads any message of tier 2."""

    messages: Sequence[Message]
    budget: int  # tokens
    query: str | None
    open_calls: OpenCalls
    recall: Callable[[str], Message] = field(repr=False)
    search: Callable[[str, int], Sequence[Hit]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The new context. `persist` makes it tier 0 from now on; without it only this one request sees it."""

    messages: Sequence[Message]
    persist: bool = True
    degraded: str | None = None  # why this is less than what was asked for


class Compactor(Protocol):
    """Turns tier 0 into a context within a budget. Called with the session's lock held by no one."""

    def __call__(self, task: CompactionTask) -> Compacted: ...
