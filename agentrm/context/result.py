"""What did a compaction do, and how does its result replace the history it was made from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real

from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls
from agentrm.context.pairs import PairEvent, repair
from agentrm.errors import ConfigError

KEPT, SHORTENED, SUMMARISED, PAGED_OUT = "kept", "shortened", "summarised", "paged_out"


def check_tokens(key: str, value: object) -> None:
    """Raises ConfigError unless `value` is a size in tokens that a list can be held to."""
    if isinstance(value, bool) or not isinstance(value, Real) or value < 0 or not value < inf:
        raise ConfigError(key, value, "a number of tokens, 0 or more")


def check_count(key: str, value: object) -> None:
    """Raises ConfigError unless `value` is a number of messages."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ConfigError(key, value, "a whole number of messages, 0 or more")


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """`messages` keeps PAIR and has `after` tokens, at most `target` unless `over_target`.

    `actions` has each message of the input by id: `kept` (byte for byte), `shortened`, `summarised`
    (something of it is in the notes, or a model read it) or `paged_out`. `cost_tokens` were spent on
    models, 0 without one. `degraded` says why the result is less than was asked for, None if it is not.
    `events` are repairs of the pairing.
    """

    messages: tuple[Message, ...]
    before: int
    after: int
    target: int
    actions: dict[str, str]
    snapshot: tuple[str, ...]
    summary: Message | None = None
    cost_tokens: int = 0
    model_calls: int = 0
    degraded: str | None = None
    events: tuple[PairEvent, ...] = ()

    @property
    def over_target(self) -> bool:
        """True when what may never be touched (system, pinned, newest request, open calls) is above the

        target alone.
        """
        return self.after > self.target

    @property
    def changed(self) -> bool:
        return self.summary is not None or any(a != KEPT for a in self.actions.values()) or bool(self.events)

    def count(self, action: str) -> int:
        return sum(a == action for a in self.actions.values())

    def carry_over(
        self, current: Sequence[Message], open_calls: OpenCalls | None = None
    ) -> tuple[Message, ...]:
        """The list that replaces `current`: the compacted snapshot, then what arrived meanwhile, in
        order, once.

        `current` is the history now; messages of the snapshot are told by id. A result that came for a call
        of the snapshot takes the place of its placeholder.
        """
        old = set(self.snapshot)
        later = [m for m in current if m.id not in old]
        if not later:
            return self.messages
        return repair([*self.messages, *later], open_calls).messages

    def __str__(self) -> str:
        parts = [f"{self.before} -> {self.after} tokens (target {self.target})"]
        for action in (KEPT, SHORTENED, SUMMARISED, PAGED_OUT):
            if self.count(action):
                parts.append(f"{self.count(action)} {action.replace('_', ' ')}")
        if self.cost_tokens:
            parts.append(f"{self.cost_tokens} model tokens")
        if self.degraded:
            parts.append(f"degraded: {self.degraded}")
        return ", ".join(parts)
