"""The kernel's transitions as readable events, by iterator and by callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrm.core.kernel import Event as KernelEvent
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Event", "Subscription", "read"]

log = logging.getLogger("agentrm")
OUTCOMES = ("done", "failed", "refunded")


@dataclass(frozen=True, slots=True)
class Event:
    """One transition. `kind`: submit, grant, settle, cancel, reap, zombie_end or penalty (a scope was closed or
    slowed).

    `seconds`: how long the call waited (grant, cancel) or held its lane (settle, reap), or how long the scope stays
    closed (penalty). `tokens`: the estimate (submit). `outcome`: done, failed or refunded (settle, zombie_end).
    """

    seq: int
    kind: str
    time_ns: int
    handle: int
    agent: str
    pool: str
    level: int
    seconds: float | None = None
    tokens: int | None = None
    outcome: str | None = None


def _translate(rm: ResourceManager, e: KernelEvent) -> Event:
    if e.kind == "penalty":
        pool = rm.layout.pools[e.pool - 1] if e.pool else ""
        return Event(e.seq, e.kind, e.time_ns, 0, "", pool, 0, seconds=max(0, e.value) / 1e6)
    seconds = tokens = outcome = None
    if e.kind == "submit":
        tokens = e.value
    elif e.kind in ("settle", "zombie_end"):
        seconds, outcome = (e.value >> 2) / 1e6, OUTCOMES[e.value & 3]
    else:
        seconds = e.value / 1e6
    agent = rm.kernel.name("agent", e.agent)
    return Event(e.seq, e.kind, e.time_ns, e.handle, agent, rm.layout.pools[e.pool], e.level, seconds, tokens, outcome)


def read(rm: ResourceManager, start: int | None) -> Iterator[Event]:
    """Events from number `start` on (default: the oldest that the ring still has) up to the newest now."""
    at = 0 if start is None else max(0, start)
    end = rm.kernel.event_head()
    while at < end:
        chunk = rm.kernel.events(at)
        if not chunk:
            return
        for e in chunk:
            if e.seq < end:
                yield _translate(rm, e)
        at = chunk[-1].seq + 1


class Subscription:
    """A callback for every transition; see `ResourceManager.subscribe`."""

    def __init__(self, rm: ResourceManager, callback: Callable[[Event], object]) -> None:
        self._rm, self._callback = rm, callback
        self._at = rm.kernel.event_head()
        self._lock = threading.Lock()
        self.lost = 0
        rm.gate.subscriptions.append(self)

    def pump(self) -> None:
        """Delivers what has happened. One thread delivers at a time, so events keep their order; a thread that finds
        another one at it leaves its events to that one."""
        while self._at < self._rm.kernel.event_head() and self._lock.acquire(blocking=False):
            try:
                chunk = self._rm.kernel.events(self._at)
                for e in chunk:
                    self.lost += e.seq - self._at
                    self._at = e.seq + 1
                    try:
                        self._callback(_translate(self._rm, e))
                    except Exception:  # a user's callback must not break the caller of the kernel
                        log.exception("a subscriber failed at event %d", e.seq)
                if not chunk:
                    return
            finally:
                self._lock.release()

    def close(self) -> None:
        """No more events. Idempotent."""
        with suppress(ValueError):  # it was closed before
            self._rm.gate.subscriptions.remove(self)
