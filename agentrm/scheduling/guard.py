"""The lease that code runs in, and the guard that puts one await of its work there."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentrm.errors import AgentRMError
from agentrm.scheduling.states import RUNNING

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease

__all__ = ["Guard", "current", "current_lease"]

current: ContextVar[Lease | None] = ContextVar("agentrm_lease", default=None)


def current_lease() -> Lease | None:
    """The innermost lease whose block this code runs in."""
    lease = current.get()
    return lease if lease is None or lease.state == RUNNING else None


class Guard:
    """See `Lease.guard`."""

    __slots__ = ("_lease", "_outer", "_token")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._outer: asyncio.Task[Any] | None = None
        self._token: Token[Lease | None] | None = None

    def __enter__(self) -> Lease:
        lease = self._lease
        if lease.error is not None:
            raise lease.error
        if lease.state != RUNNING:
            raise AgentRMError(f"{lease!r} holds no lane; acquire it before its work is guarded")
        self._token = current.set(lease)
        self._outer = lease._task
        if asyncio._get_running_loop() is not None and (task := asyncio.current_task()) is not self._outer:
            lease._watch(task)
        return lease

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        lease = self._lease
        task, lease._task = lease._task, self._outer
        alone = task is not self._outer and lease._calm(task)
        if self._token is not None:
            lease._restore(self._token)
            self._token = None
        if lease.error is not None and (kind is None or (alone and isinstance(exc, asyncio.CancelledError))):
            raise lease.error from None
