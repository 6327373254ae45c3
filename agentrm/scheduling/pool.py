"""What the manager knows of a pool besides the kernel: counters, what is usual, how a hang is told from slowness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.core.codes import IDLE
from agentrm.scheduling.progress import LONGEST_NS, Progress

if TYPE_CHECKING:
    from agentrm.config import Pool as PoolConfig
    from agentrm.config import Reaper

__all__ = ["PoolState", "Share"]

FIRST_TOKENS = 1000
"""Reserved for a call of unknown size before any was seen."""
LONGEST_S = 1e9
"""30 years: a limit beyond it is none."""


def _us(seconds: float) -> int:
    """The kernel's measure of a limit: 0 is none, and no limit is so short that it becomes none."""
    return 0 if seconds > LONGEST_S else max(1, int(seconds * 1e6))


class Share:
    """What a tenant has used of a pool. `memory`: bytes times the nanoseconds for which they were held."""

    __slots__ = ("calls", "lane_ns", "memory", "tokens")

    def __init__(self) -> None:
        self.calls = self.lane_ns = self.tokens = self.memory = 0

    def add(self, lane_ns: int, tokens: int, memory: int) -> None:
        """One call ended that held its lane, and `memory` bytes, for so long."""
        self.calls += 1
        self.lane_ns += lane_ns
        self.tokens += tokens
        if memory:
            self.memory += memory * lane_ns


OTHERS = "(other tenants)"
"""Tenants beyond the number that can be told apart."""
MOST_SHARES = 4096


class PoolState:
    """One pool at run time."""

    __slots__ = (
        "_idle_us", "_most_tokens", "_progress", "_run_us", "cancelled", "config", "failed", "granted", "index",
        "lanes", "learns", "limits", "mean_tokens", "name", "queued", "reaped", "recover",
        "refunded", "retry_attempts", "settled", "shares", "strain", "waited_s",
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
        self.strain = IDLE
        """Who waits and for what, as far as the pressure knows; see csrc/port.h."""
        self.retry_attempts = config.retry.attempts
        self.recover = reaper.recover
        self._run_us = _us(reaper.run_s)
        self.learns = reaper.idle_s == "auto"
        self._idle_us = LONGEST_NS // 1000 if reaper.idle_s == "auto" else _us(reaper.idle_s)
        self._progress: dict[int, Progress] = {}
        self.mean_tokens = 0.0
        self._most_tokens = most_tokens
        self.granted = self.queued = self.settled = self.failed = self.refunded = self.cancelled = self.reaped = 0
        self.waited_s = 0.0
        self.shares: dict[str, Share] = {}
        """By tenant."""

    def share_of(self, tenant: str) -> Share:
        """The tenant's account of use, made when new; beyond a number of tenants the rest share one."""
        known = self.shares.get(tenant)
        if known is None:
            name = tenant if len(self.shares) < MOST_SHARES else OTHERS
            known = self.shares.setdefault(name, Share())
        return known

    def idle_us(self, kind: str, asked_s: float | None) -> int:
        """Idle limit of a call in microseconds, 0 for none. Tools show no progress, so they get one only on request.
        With `auto` it is the longest that can be learnt; the reaper looks for shorter ones."""
        if asked_s is not None:
            return _us(asked_s)
        return self._idle_us if kind == "model" else 0

    def progress_of(self, scope: int) -> Progress:
        """What is known of one of the pool's models."""
        found = self._progress.get(scope)
        return found if found is not None else self._progress.setdefault(scope, Progress())

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
