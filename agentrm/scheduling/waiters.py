"""How a queued call sleeps and is woken: a thread on a lock of its own, a task on a future of its own loop.

Nothing here is bound to one loop, and no primitive is shared by two waiters. Wake-ups of one batch go to each loop in
one `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Batch", "CallbackWaiter", "LoopWaiter", "ThreadWaiter", "Waiter", "warn_of_stopped_loop"]


class Waiter(Protocol):
    """One sleeping call."""

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        """Lets the call go on, or fail with `error`, once. May be called from any thread."""
        ...


class ThreadWaiter:
    """A blocked thread."""

    __slots__ = ("_lock", "error")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.error: BaseException | None = None

    def wait(self) -> None:
        self._lock.acquire()
        if self.error is not None:
            raise self.error

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        self.error = error
        self._lock.release()


def warn_of_stopped_loop() -> None:
    """Says so where `Lease.acquire` is going to stop this thread's event loop, in which who holds the lane may run."""
    if _get_running_loop() is not None:
        warnings.warn(
            "a call waits in the queue and stops this thread's event loop, with all that runs in it; in a coroutine "
            "write `async with rm.lease(...)`, or make the framework's async call",
            RuntimeWarning,
            stacklevel=4,
        )


class CallbackWaiter:
    """Nobody sleeps: `granted()` is what a woken call would do first, `then(error)` is told how it ended."""

    __slots__ = ("_granted", "_then")

    def __init__(self, granted: Callable[[], object], then: Callable[[BaseException | None], object]) -> None:
        self._granted, self._then = granted, then

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        if error is None:
            try:
                self._granted()
            except BaseException as why:  # noqa: BLE001 - it goes to whoever waits
                error = why
        self._then(error)


class LoopWaiter:
    """A suspended task: it awaits `future`, then raises `error` if there is one. `lost` is for when its loop turns out
    to be closed: nobody will ever go on."""

    __slots__ = ("_lost", "error", "future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]) -> None:
        self.loop, self._lost = loop, lost
        self.error: BaseException | None = None
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        if asyncio._get_running_loop() is self.loop:
            self.set(error)
        else:
            batch.add(self.loop, self, error)

    def set(self, error: BaseException | None) -> None:
        if self.future.done():  # cancelled meanwhile: the canceller gives the grant back
            return
        self.error = error  # not the future's own: a task that dies unheard would leave it unretrieved
        self.future.set_result(None)

    def lost(self) -> None:
        """Its loop is closed."""
        self._lost()


class Batch:
    """The wake-ups of one kernel call that go to other threads' loops."""

    __slots__ = ("_by_loop",)

    def __init__(self) -> None:
        self._by_loop: dict[Any, list[tuple[LoopWaiter, BaseException | None]]] | None = None

    def add(self, loop: asyncio.AbstractEventLoop, waiter: LoopWaiter, error: BaseException | None) -> None:
        if self._by_loop is None:
            self._by_loop = {}
        self._by_loop.setdefault(loop, []).append((waiter, error))

    def send(self) -> list[LoopWaiter]:
        """Returns those whose loop is closed: nobody will ever go on there."""
        lost: list[LoopWaiter] = []
        if self._by_loop is not None:
            for loop, waiters in self._by_loop.items():
                try:
                    loop.call_soon_threadsafe(_wake_all, waiters)
                except RuntimeError:  # the loop is closed
                    lost += [waiter for waiter, _ in waiters]
        return lost


def _wake_all(waiters: list[tuple[LoopWaiter, BaseException | None]]) -> None:
    for waiter, error in waiters:
        waiter.set(error)
