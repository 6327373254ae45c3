"""State that many threads change, finalisers among them, without a lock that one thread could take twice.

A coroutine that the garbage collector ends gives back what it holds wherever the collector happens to run, in the
middle of another operation too. So what gives back is posted, and whoever is inside does it before leaving. """

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

__all__ = ["Serial"]


class Serial:
    """`with serial:` is inside alone. `post(operation)` never waits: the operation runs now, or right after the one
    that is inside, and everything that was posted before an entry has run by then."""

    __slots__ = ("_lock", "_posted")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posted: deque[Callable[[], object]] = deque()

    def post(self, operation: Callable[[], object]) -> None:
        self._posted.append(operation)
        self._settle()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._run()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.release()
        self._settle()

    def _settle(self) -> None:
        while self._posted and self._lock.acquire(blocking=False):
            try:
                self._run()
            finally:
                self._lock.release()

    def _run(self) -> None:
        while self._posted:
            self._posted.popleft()()
