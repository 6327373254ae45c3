"""Jobs that fire again and again: one firing runs, at most one waits behind it, others are skipped and counted."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from agentrm.errors import AdmissionError
from agentrm.scheduling.waiters import Batch, LoopWaiter, ThreadWaiter, Waiter

__all__ = ["Job", "JobSkipped", "Turn"]


class JobSkipped(AdmissionError):
    """A firing found one running and one waiting already. Nothing was done and nothing is wrong."""


class Job:
    """One recurring job of a manager; see `ResourceManager.job`. Holds no lane: the calls of a firing take their own.

    `fired`, `ran`, `skipped`: firings so far, those that ran to an end or still run, those that were not needed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fired = self.ran = self.skipped = 0
        self.running = False
        self._next: Waiter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that the running firing lives in
        self._lock = threading.RLock()

    @property
    def waiting(self) -> int:
        """Firings that wait for the running one to end: 0 or 1."""
        return int(self._next is not None)

    def turn(self) -> Turn:
        """The block (`with` or `async with`) in which one firing runs. Entering it waits for the one before; raises
        JobSkipped if another waits already."""
        return Turn(self)

    def _begin(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None = None) -> bool:
        """True: it may run now. False: it waits."""
        with self._lock:
            self.fired += 1
            if not self.running or (self._loop is not None and self._loop.is_closed()):
                self.running = True
                self.ran += 1
                self._loop = loop
                return True
            if self._next is not None:
                self.skipped += 1
                raise JobSkipped(
                    f"job {self.name!r} runs and its next run waits; this firing, number {self.fired}, is one too "
                    "many. Fire it less often, or let it skip",
                    is_retryable=False,
                )
            self._next = waiter
            return False

    def _leave(self, waiter: Waiter) -> None:
        """The firing gave up waiting, or was woken at that very moment."""
        with self._lock:
            if self._next is waiter:
                self._next = None
                self.skipped += 1
                return
        self._end()

    def _end(self) -> None:
        while True:
            with self._lock:
                waiter, self._next = self._next, None
                self.running = waiter is not None
                self._loop = waiter.loop if isinstance(waiter, LoopWaiter) else None
            if waiter is None:
                return
            batch = Batch()
            waiter.wake(batch, None)
            if not batch.send():
                self.ran += 1
                return
            self.skipped += 1  # its loop is closed: the job goes on without it


class Turn:
    """See `Job.turn`."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> Job:
        waiter = ThreadWaiter()
        if not self._job._begin(waiter):
            try:
                waiter.wait()
            except BaseException:
                self._job._leave(waiter)
                raise
        return self._job

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._job._end()

    async def __aenter__(self) -> Job:
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(loop, lambda: None)
        if not self._job._begin(waiter, loop):
            try:
                await waiter.future
            except BaseException:
                self._job._leave(waiter)
                raise
        return self._job

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._job._end()
