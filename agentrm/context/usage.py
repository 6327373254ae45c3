"""How full will the context be at the next call, and what did the last one cost?

A provider's report of prompt tokens covers the whole history: the next size is the *last* report, plus what
of its reply will be sent again, plus an estimate of what came after. Reasoning that is not sent again does
not count. A missing or zero report is no report: the size is estimated and says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.messages import Message
from agentrm.context.tokens import TokenCounter
from agentrm.errors import ConfigError

REPORTED, ESTIMATED = "reported", "estimated"


class FixedPartWarning(UserWarning):
    """System text and tool schemas alone exceed the threshold: no compaction of the history can help."""


@dataclass(frozen=True, slots=True)
class ContextSize:
    """`tokens` that the next request will have; `source` is `reported` or `estimated`."""

    tokens: int
    source: str


class ContextMeter:
    """The size of one session's context against its window.

    `window` and the result are tokens; `high` and `low` are the two watermarks as shares of the window: at
    `high` a compaction is due, down to `low`. Raises `ConfigError` unless 0 < low < high <= 1 and window >
    0.
    """

    def __init__(
        self,
        counter: TokenCounter,
        window: int,
        *,
        high: float = 0.8,
        low: float = 0.5,
        tools: Sequence[Any] = (),
    ) -> None:
        if window <= 0:
            raise ConfigError("context.window", window, "a number of tokens above 0")
        if not 0 < low < high <= 1:
            raise ConfigError("context.low, context.high", (low, high), "0 < low < high <= 1")
        self.counter, self.window, self.high, self.low = counter, window, high, low
        self.tools = tuple(tools)
        self._base: int | None = None
        self._covered = 0
        self._warned = False
        self.estimated_spend = 0
        self.reported_spend = 0

    @property
    def high_tokens(self) -> int:
        return int(self.window * self.high)

    @property
    def low_tokens(self) -> int:
        return int(self.window * self.low)

    def report(
        self,
        sent: Sequence[Message],
        *,
        prompt_tokens: int | None,
        output_tokens: int | None = None,
        reasoning_tokens: int = 0,
        reasoning_is_resent: bool = False,
        output_included: bool = True,
    ) -> None:
        """Takes the provider's usage of the call that sent `sent`.

        `output_tokens` includes `reasoning_tokens` (hidden reasoning) unless `output_included` is False. A
        prompt of None or 0 is a missing report.
        """
        visible = output_tokens or 0
        if reasoning_tokens and output_included and not reasoning_is_resent:
            visible = max(0, visible - reasoning_tokens)
        elif reasoning_tokens and not output_included and reasoning_is_resent:
            visible += reasoning_tokens
        if not prompt_tokens or prompt_tokens < 0:
            self._base = None
            self.estimated_spend += self.counter.request(sent, self.tools) + visible
            return
        self.counter.learn(sent, self.tools, prompt_tokens)
        self.reported_spend += prompt_tokens + (output_tokens or 0)
        self._base = prompt_tokens + visible
        self._covered = len(sent) + (1 if visible else 0)

    def size(self, messages: Sequence[Message]) -> ContextSize:
        """The next request's size for the full list `messages`, which begins with what was last sent, and

        its reply.
        """
        if self._base is None or len(messages) < self._covered:
            return ContextSize(self.counter.request(messages, self.tools), ESTIMATED)
        later = self.counter.messages(messages[self._covered :])
        return ContextSize(self._base + later, REPORTED)

    def compacted(self) -> None:
        """The list was replaced: the last report no longer describes it."""
        self._base, self._covered = None, 0

    def is_due(self, messages: Sequence[Message]) -> bool:
        """True when the next request would reach the high watermark and a compaction can help.

        When the part that no compaction touches (leading system text and tool schemas) is above the
        watermark by itself, warns once with `FixedPartWarning` and returns False.
        """
        if self.size(messages).tokens < self.high_tokens:
            return False
        fixed = self.counter.request(_leading_system(messages), self.tools)
        if fixed >= self.high_tokens:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"system text and tool schemas take {fixed} tokens, the compaction threshold is "
                    f"{self.high_tokens} of a window of {self.window}: shorten them or use a larger window",
                    FixedPartWarning,
                    stacklevel=2,
                )
            return False
        return True


def _leading_system(messages: Iterable[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        if message.role != "system":
            break
        out.append(message)
    return out
