"""The scheduler's parameters, checked at construction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrm.errors import ConfigError

__all__ = ["ProgramSettings"]


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """How programs share the backends. The defaults are meant to be left alone.

    Raises ConfigError for values that cannot work; warns if `ageing_tokens` is 0.
    """

    max_waiting: int = 10_000
    """Turns that may wait; a newcomer beyond is refused with a time to come back. The turns of programs that are known
    are let in up to twice as many."""
    admit: float = 0.94
    """Newcomers and paused programs are let in while what counts on a backend stays within this share of its capacity;
    the rest is room to grow for those inside, which may use all of it. The sum wanders by itself, as programs grow and
    end: at 1 whoever was let in would soon be paused again, and computed again; much less leaves memory empty."""
    credit_s: float = 120.0
    """Who goes first, and who is displaced, depends on the seconds for which a program was held back for each second of
    its own. This many seconds of its own it is given at the start. Small values favour programs that have just begun.
    """
    unfair: float = 1.5
    """Whoever was held back by so many seconds more, for each second of its own, displaces a program between turns."""
    patience_s: float = 900.0
    """Who has waited for longer goes before all that came later, may displace programs that are between two turns and
    have been inside for `residence_s`, and has room reserved for it."""
    residence_s: float = 300.0
    ageing_s: float = 600.0
    """Background work that has waited for longer is served with the subagents."""
    passes: int = 8
    """How many later turns may be granted before one that lacks room; then room is reserved for it. In proportion more
    before one that needs more than a sixteenth of the largest backend: its room gathers slowly and stands empty
    meanwhile."""
    ageing_tokens: int = 1000
    """A newcomer goes before those with more of their prompt in the cache, up to this many tokens more for each turn
    that was granted before it. 0: the most cached first whatever it costs the others, without any bound."""
    idle_ttl_s: float = 1800.0
    """A program from which nothing was heard for this long is forgotten."""
    max_idle: int = 20_000
    """Programs without a turn that are remembered (about 2 kB each); beyond, the longest idle is forgotten early."""
    keep: float = 1.0
    """A paused or new program may take the place of one whose next turn is far away: farther than the time in which the
    backend fills its cache by prefill, times this. Larger keeps idle programs longer."""
    balance: float = 0.25
    """What a fuller backend costs a newcomer or a returning program: at 1 a full one costs as much as computing a whole
    cache anew."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of tenants while they compete; 1 where nothing is said."""

    def __post_init__(self) -> None:
        for key, least in (("max_waiting", 1), ("max_idle", 1), ("passes", 0), ("ageing_tokens", 0)):
            value = getattr(self, key)
            if type(value) is not int or value < least:
                raise ConfigError(f"programs.{key}", value, f"a whole number from {least}")
        if not 0 < self.admit <= 1:
            raise ConfigError("programs.admit", self.admit, "above 0, at most 1")
        if not 0 < self.credit_s < math.inf:
            raise ConfigError("programs.credit_s", self.credit_s, "seconds above 0")
        for key in ("unfair", "patience_s", "residence_s", "ageing_s", "idle_ttl_s", "keep", "balance"):
            value = getattr(self, key)
            if math.isnan(value) or value < 0:
                raise ConfigError(f"programs.{key}", value, "a number from 0")
        for tenant, weight in self.weights.items():
            if not (0 < weight < math.inf):
                raise ConfigError(f"programs.weights.{tenant}", weight, "a number above 0")
        if self.ageing_tokens == 0:
            warnings.warn(
                "programs.ageing_tokens is 0: turns with nothing in the cache may wait for ever behind those that have",
                stacklevel=3,
            )
