"""The one thread that a loop belongs to: what others post it does between two turns of the loop, in order.

It is there while there is work, and a little longer.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from agentrm.errors import ForkedError
from agentrm.models.errors import WaitsForItself

T = TypeVar("T")
LINGER_S = 2.0


class Turning(Protocol):
    """What the thread turns."""

    closed: bool

    def turn(self) -> bool:
        """One step. False: nobody could go on."""
        ...

    def patience(self) -> float | None:
        """How long to wait for something to be posted when nobody can go on, in seconds; None: for as long as it
        takes."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a step, so that the thread may end."""
        ...

    def broke(self, error: BaseException) -> None:
        """A fault of the loop itself: it is over, and nobody may wait for it for ever."""
        ...


class EngineThread:
    """Starts with the first thing that is posted. In a forked child everything raises ForkedError."""

    def __init__(self, turning: Turning) -> None:
        self._turning = turning
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        """A generation may be collected, and post that it is left, at any allocation: in here too."""
        self._thread: threading.Thread | None = None
        self._forked = False
        _threads.add(self)

    @property
    def runs(self) -> bool:
        return self._thread is not None

    def check(self) -> None:
        """Raises ForkedError in a child of the process that it belongs to."""
        if self._forked:
            raise ForkedError("this engine was loaded before fork() and belongs to the parent; load one in the child")

    def post(self, what: Callable[[], object]) -> None:
        """Has it done in the thread, between two steps."""
        self.check()
        self._inbox.put(what)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="agentrm-engine", daemon=True)
                if self._thread is None:  # nobody has posted, and started one, while this one was made
                    self._thread = thread
                    thread.start()

    def ask(self, what: Callable[[], T]) -> T:
        """As `post`, and waits for the result."""
        answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put((what(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                answer.put((None, error))

        if threading.current_thread() is self._thread:
            return what()
        self.post(work)
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def wait(self, came: queue.SimpleQueue[T]) -> T:
        """What the thread puts there. Raises WaitsForItself in the thread itself, if it is not there already."""
        if threading.current_thread() is self._thread and came.empty():
            raise WaitsForItself
        return came.get()

    def join(self, timeout: float | None) -> None:
        """Until it has ended; not from itself."""
        with self._lock:  # one that is just being started can't be waited for
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def forked(self) -> None:
        """In the child: there is no such thread here, and whoever held the lock is not here either."""
        self._forked = self._turning.closed = True

    def _run(self) -> None:
        import torch

        try:
            with torch.inference_mode():
                self._turn()
        except BaseException as error:
            self._turning.broke(error)
            with self._lock:
                self._thread = None
            self.post(lambda: None)  # another thread tells those who have asked meanwhile that it is closed
            raise

    def _turn(self) -> None:
        turning = self._turning
        while True:
            busy = turning.turn()
            try:
                while True:
                    self._inbox.get_nowait()()
                    busy = True  # it may have given somebody something to do
            except queue.Empty:
                pass
            if busy and not turning.closed:
                continue
            try:
                self._inbox.get(timeout=self._wait_s())()
            except queue.Empty:
                with self._lock:
                    self._thread = None  # whoever posts from here on, this thread too, starts another one
                    needed = not (turning.idle and self._inbox.empty())
                    if not needed or self._thread is not None:
                        return
                    self._thread = threading.current_thread()

    def _wait_s(self) -> float | None:
        if self._turning.closed:
            return 0.0
        return LINGER_S if self._turning.idle else self._turning.patience()


def apart(work: Callable[[], T]) -> T:
    """What torch computes before the loop starts, in a thread of its own that ends with it.

    OpenMP keeps workers for each thread that has computed, as long as that thread lives; once there are more of all
    of them than processors, every operation has to wake its workers anew, which costs a step of a small model as much
    time as its sums do.
    """
    with ThreadPoolExecutor(1, "agentrm-load") as threads:
        return threads.submit(work).result()


_threads: weakref.WeakSet[EngineThread] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_threads):
        thread.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
