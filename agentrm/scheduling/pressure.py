"""How much of the time did callers wait, and for what? Linux's pressure stall information, for lanes, rate, context.

For each resource, `some` is the share of time in which at least one caller waited for it, `full` that in which every
caller did, so that nothing was done (of lanes: all are kept by calls that were given up and cannot be stopped). The
averages are exponential over 10, 60 and 300 s and exact: between two changes the state is constant, so it is reckoned
only when it changes, on the manager's clock. A pool in which nobody waits costs one attribute test per call.

Source: the Linux kernel's Documentation/accounting/psi.rst; its averages are sampled every 2 s, these are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.core.codes import IDLE, TAKEN, WAITED
from agentrm.limits.serial import Serial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrm.scheduling.manager import ResourceManager
    from agentrm.scheduling.pool import PoolState

__all__ = ["Averages", "Pressure", "PressureGauge", "ResourcePressure"]

WINDOWS_S = (10.0, 60.0, 300.0)
RESOURCES = ("lanes", "rate", "context")
CALM = 0.005
"""Shares below this are not worth a word."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Shares of time, 0 to 1, over about the last 10, 60 and 300 seconds, and `total_s`, seconds since the start."""

    avg10: float
    avg60: float
    avg300: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ResourcePressure:
    """`some`: at least one caller waited. `full`: all of them did."""

    some: Averages
    full: Averages


@dataclass(frozen=True, slots=True)
class Pressure:
    """Of the whole manager: `some` as soon as a caller of any pool waited, `full` if in a pool all callers did.

    `lanes`: callers waited for a lane. `rate`: lanes were free, requests or tokens were not, or a provider was spared.
    `context`: sessions were above the watermark at which their context is compacted, as far as somebody reported
    it. `pools`: lanes and rate of each pool in which callers ever waited.
    """

    lanes: ResourcePressure
    rate: ResourcePressure
    context: ResourcePressure
    pools: Mapping[str, tuple[ResourcePressure, ResourcePressure]]

    def note(self) -> str:
        """One line for an agent's context, so that it can hold back; empty while there is nothing to say."""
        waits = [
            f"{share:.0%} of the last {window} for {what}"
            for what, found in (("a free lane", self.lanes.some), ("the provider's pace", self.rate.some))
            for share, window in [max((found.avg10, "10 s"), (found.avg60, "60 s"))]
            if share >= CALM
        ]
        parts = [f"callers waited {' and '.join(waits)}"] if waits else []
        if self.context.some.avg60 >= CALM:
            parts.append(f"contexts were nearly full {self.context.some.avg60:.0%} of the last 60 s")
        if not parts:
            return ""
        advice = "Prefer fewer and smaller calls, and start no helpers that you can spare."
        return f"Shared resources are busy: {'; '.join(parts)}. {advice}"


class _Share:
    """The averages of one state that is on or off."""

    __slots__ = ("_averages", "_since_ns", "_total_ns", "on")

    def __init__(self, now: int) -> None:
        self._averages = [0.0, 0.0, 0.0]
        self._since_ns, self._total_ns, self.on = now, 0, False

    def set(self, on: bool, now: int) -> None:
        self._reckon(now)
        self.on = on

    def _reckon(self, now: int) -> None:
        passed = now - self._since_ns
        if passed > 0:
            target = 1.0 if self.on else 0.0
            for i, window in enumerate(WINDOWS_S):
                self._averages[i] = target + (self._averages[i] - target) * math.exp(-passed / (window * 1e9))
            self._total_ns += passed if self.on else 0
            self._since_ns = now

    def read(self, now: int) -> Averages:
        self._reckon(now)
        avg10, avg60, avg300 = self._averages
        return Averages(avg10, avg60, avg300, self._total_ns / 1e9)


class _Pair:
    """`some` and `full` of one resource."""

    __slots__ = ("full", "some")

    def __init__(self, now: int) -> None:
        self.some, self.full = _Share(now), _Share(now)

    def set(self, some: bool, full: bool, now: int) -> bool:
        """Whether anything changed."""
        changed = (some, full) != (self.some.on, self.full.on)
        if changed:
            self.some.set(some, now)
            self.full.set(full, now)
        return changed

    def read(self, now: int) -> ResourcePressure:
        return ResourcePressure(self.some.read(now), self.full.read(now))


class PressureGauge:
    """One manager's pressure. Safe from any thread and from finalisers."""

    def __init__(self, rm: ResourceManager) -> None:
        self._rm = rm
        now = rm.clock.now_ns()
        self._serial = Serial()
        self._whole = {name: _Pair(now) for name in RESOURCES}
        self._pools: dict[PoolState, tuple[_Pair, _Pair]] = {}
        self._contexts: dict[str, bool] = {}

    def touch(self, pool: PoolState) -> None:
        """Something may have changed in a pool where somebody waits, or waited until now. Never waits."""
        if self._rm.gate.port.strain(pool.index) != pool.strain:  # whoever changes it later looks after that
            self._serial.post(lambda: self._look(pool))

    def _look(self, pool: PoolState) -> None:
        strain = self._rm.gate.port.strain(pool.index)
        if strain == pool.strain:
            return
        pool.strain = strain
        waits, idle, taken = strain & WAITED, strain & IDLE, strain & TAKEN
        now = self._rm.clock.now_ns()
        pairs = self._pools.get(pool)
        if pairs is None:
            if not waits:
                return
            pairs = self._pools[pool] = (_Pair(now), _Pair(now))
        for number, (name, on) in enumerate((("lanes", bool(waits and taken)), ("rate", bool(waits and not taken)))):
            if pairs[number].set(on, bool(on and idle), now):
                all_ = [both[number] for both in self._pools.values()]
                self._whole[name].set(any(p.some.on for p in all_), any(p.full.on for p in all_), now)

    def context(self, session: str, full: bool | None) -> None:
        """Whether a session's context is above its watermark now; None: the session is gone."""
        with self._serial:
            if full is None:
                self._contexts.pop(session, None)
            else:
                self._contexts[session] = full
            states = self._contexts.values()
            self._whole["context"].set(any(states), bool(states) and all(states), self._rm.clock.now_ns())

    def read(self) -> Pressure:
        with self._serial:
            now = self._rm.clock.now_ns()
            pools = {pool.name: (both[0].read(now), both[1].read(now)) for pool, both in self._pools.items()}
            lanes, rate, context = (self._whole[name].read(now) for name in RESOURCES)
            return Pressure(lanes, rate, context, pools)
