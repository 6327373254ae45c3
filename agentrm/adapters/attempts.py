"""After a failed attempt of a call: try again, when, and when not?

Nothing is held while a call waits for its next attempt. A refusal for rate closes the scope in the manager,
so the next attempt simply queues; other failures that can pass (5xx, a lost connection) wait
here, longer each time; one whose pause would be longer than the call may queue (`wait_max`) is final. A call
that stopped making progress is tried once more. Quota, keys, bad requests and everything that is no provider's
failure are final at once; the original exception goes to the caller unchanged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentrm.adapters.leaving import current_leaving
from agentrm.adapters.spec import CallSpec
from agentrm.errors import AgentRMError, IdleTimeout
from agentrm.limits.provider_errors import ProviderError
from agentrm.scheduling import current_lease
from agentrm.threads import Signal

if TYPE_CHECKING:
    from agentrm.scheduling import Lease, ResourceManager

__all__ = ["Attempts", "pause", "pause_async"]

log = logging.getLogger("agentrm")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
"""Of the pauses of our own choice, and of those that a provider asks for where the waiting has no bound."""
_LONG_PAUSE_S = 2.0
"""A pause of so many seconds is a warning in the log: who waits for the answer should not have to guess."""


class Attempts:
    """Counts the failed attempts of one call."""

    __slots__ = ("_failures", "_hangs", "_rm", "_spec")

    def __init__(self, rm: ResourceManager, spec: CallSpec) -> None:
        self._rm, self._spec = rm, spec
        self._failures = self._hangs = 0

    @property
    def any_failed(self) -> bool:
        return self._failures + self._hangs > 0

    def pause_or_raise(self, lease: Lease, error: Exception, problem: ProviderError | None) -> float:
        """Seconds until the next attempt (0: at once, through the queue). Raises `error` if it is final."""
        wait = self._pause_after(lease, error, problem)
        if wait is not None:
            return wait
        try:
            if isinstance(error, AgentRMError):
                raise self._spec.translated(error) from error.__cause__
            raise error
        finally:  # no cycle through this frame: it would keep what the callers' frames hold until the next collection
            del error

    def _pause_after(self, lease: Lease, error: Exception, problem: ProviderError | None) -> float | None:
        if not self._spec.is_retried:
            return None
        if isinstance(error, IdleTimeout) and lease.reaped:
            self._hangs += 1
            return 0.0 if self._hangs <= lease.recover else None
        if problem is None or not problem.retryable:
            return None
        self._failures += 1
        if self._failures >= lease.retry_attempts:
            return None
        if problem.kind in ("rate", "overloaded"):  # the manager closed the scope for a while
            return 0.0
        bound = self._rm.config.waiting.max_s if self._spec.wait_max is None else self._spec.wait_max
        usual = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
        spread: float = self._rm.random.uniform(0.75, 1.25)  # those that failed together do not return together
        asked: float = max(problem.retry_after_s or 0.0, usual)
        if asked > (_LONGEST_PAUSE_S if bound is None else bound):
            return None
        log.log(
            logging.WARNING if asked >= _LONG_PAUSE_S else logging.INFO,
            "a call of agent %r in pool %r failed (%s); attempt %d of %d comes in %.1f s",
            lease.agent, lease.pool, type(error).__name__, self._failures + 1, lease.retry_attempts, asked * spread,
        )  # fmt: skip
        return asked * spread


def pause(rm: ResourceManager, seconds: float) -> None:
    """Waits on the manager's clock, until the manager closes at the longest."""
    if seconds <= 0:
        return
    over, leaving = threading.Event(), current_leaving()
    with _woken(rm, seconds, over.set):
        if leaving is not None:
            leaving.watch(over.set)
        try:
            over.wait()
        finally:
            if leaving is not None:
                leaving.forget(over.set)


async def pause_async(rm: ResourceManager, seconds: float, spec: CallSpec) -> None:
    """`pause` without blocking the loop; `spec.on_wait` gets the future that it waits for, a cancellation ends it."""
    if seconds <= 0:
        return
    over = Signal()
    if spec.on_wait is not None:
        spec.on_wait(over.future)
    with _woken(rm, seconds, over.set):
        await over.wait()


@contextmanager
def _woken(rm: ResourceManager, seconds: float, wake: Callable[[], None]) -> Iterator[None]:
    timer = rm.clock.call_at(rm.clock.now_ns() + round(seconds * 1e9), wake)
    rm.gate.pauses[wake] = outer = current_lease()
    try:
        if rm.gate.closing:  # closed before it could know of this one
            wake()
        yield
    finally:
        if outer is not None:
            outer.waited()
        del rm.gate.pauses[wake]
        timer.cancel()
