"""Sync work on a thread of its own, which the caller can leave when its lease is reaped or it is
interrupted itself."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from agentrm.threads.workers import Worker

__all__ = ["Work"]


class Work:
    """One piece of work: it ends (`value` or `error` is set), or its caller leaves first; which of the two
    is decided once. `wake` is called from the worker's thread when it ended in time, `late` when nobody
    waits for it any more: its result is dropped then. Context variables are those of the place where the
    work was made."""

    __slots__ = ("_context", "_done", "_fn", "_late", "_left", "_lock", "_wake", "error", "value")

    def __init__(
        self,
        fn: Callable[[], Any],
        wake: Callable[[], None],
        late: Callable[[], None],
        context: contextvars.Context | None = None,
    ) -> None:
        self._fn, self._wake, self._late = fn, wake, late
        self._context = context or contextvars.copy_context()
        self._lock = threading.Lock()
        self._done = self._left = False
        self.value: Any = None
        self.error: BaseException | None = None

    def start(self, worker: Worker) -> None:
        worker.submit(self._run)

    def leave(self) -> bool:
        """True if the caller left before the end, False if the work had ended (its outcome counts) or was
        left before."""
        with self._lock:
            if self._done or self._left:
                return False
            self._left = True
            return True

    def result(self) -> Any:
        """What the work returned or raised; it must have ended."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # no cycle through the traceback's frames

    def _run(self) -> None:
        try:
            self.value = self._context.run(self._fn)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
            self.error = error
        with self._lock:
            self._done = True
            late = self._left
        if late:
            self.value = self.error = None
            self._late()
        else:
            self._wake()
