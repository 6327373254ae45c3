"""What the manager knows of a pool besides the kernel: counters, what is usual, how a hang is told from slowness."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrm.config import Pool as PoolConfig
    from agentrm.config import Reaper

__all__ = ["PoolState", "Progress"]

FLOOR_S, CEILING_S, UNKNOWN_S = 60.0, 300.0, 120.0
MARGIN = 6.0
FIRST_TOKENS = 1000
"""Reserved for a call of unknown size before any was seen."""
LONGEST_S = 1e9
"""30 years: a limit beyond it is none."""


class Progress:
    """How long a healthy call of this pool has gone without a chunk, and from that how long is too long.

    The limit is six times the longest silence of the last 64 to 128 healthy calls, at least 60 s and at most 300 s, and
    120 s while fewer than four calls were seen. A call without streaming is one silence from start to end.
    """

    __slots__ = ("_before", "_count", "_longest", "limit_us")

    def __init__(self) -> None:
        self._longest = self._before = self._count = 0
        self.limit_us = int(UNKNOWN_S * 1e6)

    def observe(self, longest_silence_ns: int) -> None:
        self._count += 1
        if longest_silence_ns > self._longest:
            self._longest = longest_silence_ns
        elif self._count != 4 and self._count < 64:
            return
        if self._count >= 4:
            seconds = MARGIN * max(self._longest, self._before) / 1e9
            self.limit_us = int(min(CEILING_S, max(FLOOR_S, seconds)) * 1e6)
        if self._count == 64:
            self._before, self._longest, self._count = self._longest, 0, 4


def _us(seconds: float) -> int:
    """The kernel's measure of a limit: 0 is none, and no limit is so short that it becomes none."""
    return 0 if seconds > LONGEST_S else max(1, int(seconds * 1e6))


class PoolState:
    """One pool at run time."""

    __slots__ = (
        "_idle_us", "_most_tokens", "_run_us", "cancelled", "config", "failed", "granted", "index", "lanes", "limits",
        "mean_tokens", "name", "progress", "queued", "reaped", "recover", "refunded", "retry_attempts", "settled",
        "waited_s",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        index: int,
        config: PoolConfig,
        reaper: Reaper,
        limits: tuple[int, ...],
        most_tokens: int | None = None,
    ) -> None:
        """`limits`: their numbers in the kernel. `most_tokens`: what all token limits can give at once, if any."""
        self.name, self.index, self.config, self.limits = name, index, config, limits
        self.lanes = config.lanes
        self.retry_attempts = config.retry.attempts
        self.recover = reaper.recover
        self._run_us = _us(reaper.run_s)
        self._idle_us = None if reaper.idle_s == "auto" else _us(reaper.idle_s)
        self.progress = Progress()
        self.mean_tokens = 0.0
        self._most_tokens = most_tokens
        self.granted = self.queued = self.settled = self.failed = self.refunded = self.cancelled = self.reaped = 0
        self.waited_s = 0.0

    def idle_us(self, kind: str, asked_s: float | None) -> int:
        """Idle limit of a call in microseconds, 0 for none. Tools show no progress, so they get one only on request."""
        if asked_s is not None:
            return _us(asked_s)
        if kind != "model":
            return 0
        return self.progress.limit_us if self._idle_us is None else self._idle_us

    def run_us(self, asked_s: float | None) -> int:
        """Run limit of a call in microseconds, 0 for none."""
        if asked_s is None:
            return self._run_us
        return _us(asked_s)

    def usual_tokens(self) -> int:
        """What a call that names no size reserves: the mean of those before it. Where tokens are limited, never nothing
        and never more than the limits can give."""
        mean = int(self.mean_tokens)
        return mean if self._most_tokens is None else min(mean or FIRST_TOKENS, self._most_tokens)

    def learn_tokens(self, used: int) -> None:
        self.mean_tokens += (used - self.mean_tokens) / 16 if self.mean_tokens else used
