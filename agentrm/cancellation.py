"""Calling off everything that is asked for in a block: in its tasks and threads, through any framework.

    with agentrm.cancellable() as work:
        ...                       # elsewhere: work.cancel()
        agent.invoke(...)

From then on no call begins in the block, neither a model call nor a tool call: those that wait leave the queue, those
that are asked for are refused, all with WorkCancelled. What runs is not interrupted; a task is, by its own `cancel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from agentrm.errors import WorkCancelled

__all__ = ["cancellable"]

Refuse = Callable[[Any, BaseException], object]

current_scope: ContextVar[cancellable | None] = ContextVar("agentrm_cancellable", default=None)


class cancellable:
    """See the module. `with` and `async with` alike. Cancelling a block cancels those inside it."""

    __slots__ = ("_cancelled", "_lock", "_outer", "_token", "_waiting", "reason")

    def __init__(self) -> None:
        self.reason = ""
        """What `cancel` was told."""
        self._cancelled = False
        self._lock = threading.Lock()
        self._outer: cancellable | None = None
        self._token: Token[cancellable | None] | None = None
        self._waiting: WeakKeyDictionary[object, Refuse] | None = None  # made by the first call that waits: few do

    @property
    def cancelled(self) -> bool:
        """Whether this block, or one round it, was cancelled."""
        return self._cancelled or (self._outer is not None and self._outer.cancelled)

    def cancel(self, reason: str = "") -> None:
        """Calls the block's work off, from any thread. Again it does nothing."""
        with self._lock:
            if self._cancelled:
                return
            self.reason, self._cancelled = reason, True
            waiting = [] if self._waiting is None else list(self._waiting.items())
            self._waiting = None
        for call, refuse in waiting:
            refuse(call, self.error())

    def error(self) -> WorkCancelled:
        """What its calls are refused with."""
        scope: cancellable | None = self
        while scope is not None and not scope._cancelled:
            scope = scope._outer
        why = f" ({scope.reason})" if scope is not None and scope.reason else ""
        return WorkCancelled(f"this work was cancelled{why}; the call was not made. Do not try it again")

    def watch(self, call: object, refuse: Refuse) -> None:
        """`refuse(call, error)` is called if the block, or one round it, is cancelled while `call` exists and waits; at
        once if it is cancelled already. `refuse` must not keep `call` alive."""
        scope: cancellable | None = self
        while scope is not None:
            with scope._lock:
                cancelled = scope._cancelled
                if not cancelled:
                    if scope._waiting is None:
                        scope._waiting = WeakKeyDictionary()
                    scope._waiting[call] = refuse
            if cancelled:
                refuse(call, self.error())
                return
            scope = scope._outer

    def forget(self, call: object) -> None:
        """The call waits no longer."""
        scope: cancellable | None = self
        while scope is not None:
            with scope._lock:
                if scope._waiting is not None:
                    scope._waiting.pop(call, None)
            scope = scope._outer

    def __enter__(self) -> cancellable:
        self._outer = current_scope.get()
        self._token = current_scope.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            current_scope.reset(self._token)
            self._token = None

    async def __aenter__(self) -> cancellable:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, tb)
