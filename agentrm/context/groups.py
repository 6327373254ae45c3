"""Where may a history be cut?

A `Group` is the smallest piece that can go or stay: one message, or an assistant message with tool calls
together with the results of those calls. Groups of a repaired list cover it without gap or overlap, in
order; a list cut between groups keeps PAIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrm.context.messages import PENDING, Message


@dataclass(frozen=True, slots=True)
class Group:
    """`messages[start:end]` of the list it came from."""

    start: int
    end: int
    messages: tuple[Message, ...]

    @property
    def kind(self) -> str:
        """`tools` for a call with its results, else the role of the one message."""
        return "tools" if self.messages[0].calls else self.messages[0].role

    @property
    def pinned(self) -> bool:
        return any(m.pinned for m in self.messages)

    @property
    def is_open(self) -> bool:
        """True when a call of the group is shown with a placeholder:

        it stays until it is answered or closed.
        """
        return any(PENDING in m.flags for m in self.messages)

    @property
    def text(self) -> str:
        return "\n".join(m.text for m in self.messages)


def groups_of(messages: Sequence[Message]) -> list[Group]:
    """The groups of a list without PAIR breaks (see `agentrm.context.pairs.repair`)."""
    out: list[Group] = []
    start = 0
    while start < len(messages):
        end = start + 1
        waiting = {c.id for c in messages[start].calls}
        while end < len(messages) and waiting and messages[end].role == "tool":
            waiting -= {r.call_id for r in messages[end].results}
            end += 1
        out.append(Group(start, end, tuple(messages[start:end])))
        start = end
    return out


def newest_user_message(messages: Sequence[Message]) -> int | None:
    """Index of the newest message that a person wrote: user role, not written by agentrm. None without one.

    It is what the agent works on until the next one arrives, so it counts as unanswered.
    """
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "user" and not message.flags & {"summary", "synthetic"} and not message.pinned:
            return index
    return None
