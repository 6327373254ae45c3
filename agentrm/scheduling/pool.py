"""What the manager knows of a pool besides the kernel: counters, what is usual, how a hang is told from slowness."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrm.config import Pool as PoolConfig
    from agentrm.config import Reaper

__all__ = ["PoolState", "Progress"]

FLOOR_S, CEILING_S, UNKNOWN_S = 60.0, 300.0, 120.0
MARGIN = 6.0


class Progress:
    """How long a healthy call of this pool has gone without a chunk, and from that how long is too long.

    The limit is six times the longest silence of the last 64 healthy calls, at least 60 s and at most 300 s, and 120 s
    while fewer than four calls were seen. A call without streaming is one silence from start to end.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=64)

    def observe(self, longest_silence_ns: int) -> None:
        self._seen.append(longest_silence_ns)

    def limit_s(self) -> float:
        if len(self._seen) < 4:
            return UNKNOWN_S
        return min(CEILING_S, max(FLOOR_S, MARGIN * max(self._seen) / 1e9))


class PoolState:
    """One pool at run time."""

    __slots__ = (
        "_idle_setting", "cancelled", "config", "failed", "granted", "index", "lanes", "limits", "mean_tokens", "name",
        "progress", "queued", "reaped", "recover", "refunded", "retry_attempts", "run_s", "settled", "token_limited",
        "waited_s",
    )  # fmt: skip

    def __init__(self, name: str, index: int, config: PoolConfig, reaper: Reaper, limits: tuple[int, ...]) -> None:
        self.name, self.index, self.config, self.limits = name, index, config, limits
        self.lanes = config.lanes
        self.retry_attempts = config.retry.attempts
        self.recover = reaper.recover
        self.run_s = reaper.run_s
        self._idle_setting = reaper.idle_s
        self.progress = Progress()
        self.mean_tokens = 0.0
        self.granted = self.queued = self.settled = self.failed = self.refunded = self.cancelled = self.reaped = 0
        self.waited_s = 0.0

    def idle_us(self, kind: str, asked_s: float | None) -> int:
        """Idle limit of a call in microseconds, 0 for none. Tools show no progress, so they get one only on request."""
        if asked_s is not None:
            return 0 if math.isinf(asked_s) else int(asked_s * 1e6)
        if kind != "model":
            return 0
        setting = self._idle_setting
        return int((self.progress.limit_s() if setting == "auto" else float(setting)) * 1e6)

    def run_us(self, asked_s: float | None) -> int:
        """Run limit of a call in microseconds, 0 for none."""
        seconds = self.run_s if asked_s is None else asked_s
        return 0 if math.isinf(seconds) else int(seconds * 1e6)

    def learn_tokens(self, used: int) -> None:
        self.mean_tokens += (used - self.mean_tokens) / 16 if self.mean_tokens else used
