"""Time as a parameter: a clock says what time it is and calls back when a time has come.

The manager sets all of its timers on its clock, so under a `VirtualClock` everything it does is deterministic and
nothing sleeps.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "Timer", "VirtualClock"]


LINGER_S = 10.0


class Timer:
    """One pending callback. `cancel()` is idempotent and safe from any thread; a callback that has begun runs to its
    end."""

    __slots__ = ("_owner", "fn", "when_ns")

    def __init__(self, when_ns: int, fn: Callable[[], object], owner: _Heap) -> None:
        self.when_ns = when_ns
        self.fn: Callable[[], object] | None = fn
        self._owner = owner

    def pending_by(self, when_ns: int) -> bool:
        """Whether it has yet to run, at `when_ns` or before."""
        return self.fn is not None and self.when_ns <= when_ns

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self._owner.cancelled += 1


class _Heap:
    """Timers by time, then creation. Cancelled ones are thrown out when they are half of all."""

    __slots__ = ("_entries", "_order", "cancelled")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self.cancelled = 0

    def add(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        if self.cancelled > 64 and self.cancelled * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].fn is not None]
            heapq.heapify(self._entries)
            self.cancelled = 0
        timer = Timer(when_ns, fn, self)
        heapq.heappush(self._entries, (when_ns, next(self._order), timer))
        return timer

    def next_ns(self) -> int | None:
        """When the earliest timer is due."""
        while self._entries and self._entries[0][2].fn is None:
            heapq.heappop(self._entries)
            self.cancelled -= 1
        return self._entries[0][0] if self._entries else None

    def pop(self) -> Callable[[], object] | None:
        """Takes the earliest one off; None if it was cancelled at this moment."""
        timer = heapq.heappop(self._entries)[2]
        fn, timer.fn = timer.fn, None
        return fn


class Clock(Protocol):
    """What the manager needs of time."""

    def now_ns(self) -> int:
        """Nanoseconds that never go back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for HTTP dates and records only."""
        ...

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        """Calls `fn` once at or after `when_ns`, from whichever thread the clock uses; `fn` must be short."""
        ...


class MonotonicClock:
    """The machine's monotonic clock. Its timers share one daemon thread, started with the first timer, which sleeps
    until the earliest of them: nothing polls. It ends when there has been no timer for a while."""

    def __init__(self) -> None:
        self._heap = _Heap()
        self._lock = threading.RLock()  # re-entrant: the collector may run a callback that sets a timer, here too
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # re-entrant too
        self._thread: threading.Thread | None = None
        self._sleeping_until = 0

    now_ns = staticmethod(time.monotonic_ns)

    def wall(self) -> float:
        return time.time()

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        with self._lock:
            timer = self._heap.add(when_ns, fn)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="agentrm-timer", daemon=True)
                thread.start()
                self._thread = thread  # in this order, as below: a signal in between leaves it to the next call
            elif when_ns < self._sleeping_until:
                self._wake.put(None)
                self._sleeping_until = 0
        return timer

    def _run(self) -> None:
        while True:
            due: list[Callable[[], object]] = []
            wait: float | None = None
            with self._lock:
                now = time.monotonic_ns()
                when = self._heap.next_ns()
                while when is not None and when <= now:
                    fn = self._heap.pop()
                    if fn is not None:
                        due.append(fn)
                    when = self._heap.next_ns()
                self._sleeping_until = 0 if due else when if when is not None else 1 << 62
                if when is not None:
                    wait = min((when - now) / 1e9, threading.TIMEOUT_MAX)
            for fn in due:
                try:
                    fn()
                except BaseException:  # one timer's fault must not stop the others; the trace says whose it was
                    logging.getLogger("agentrm").exception("a timer failed")
            if due:
                continue
            try:
                self._wake.get(timeout=LINGER_S if wait is None else wait)
            except queue.Empty:
                with self._lock:
                    if self._heap.next_ns() is None:
                        self._thread = None
                        return


class VirtualClock:
    """Time that moves only when a test or a simulation moves it; timers run in order of time, then of creation."""

    def __init__(self, start_ns: int = 1_000_000_000, wall: float = 1_700_000_000.0) -> None:
        self._now = start_ns
        self._start, self._wall = start_ns, wall
        self._heap = _Heap()
        self._lock = threading.RLock()

    def now_ns(self) -> int:
        return self._now

    def wall(self) -> float:
        return self._wall + (self._now - self._start) / 1e9

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return (self._now - self._start) / 1e9

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        with self._lock:
            return self._heap.add(when_ns, fn)

    def next_timer_ns(self) -> int | None:
        """When the next timer is due, None if there is none."""
        with self._lock:
            return self._heap.next_ns()

    def run_until(self, seconds: float) -> None:
        """Moves to `seconds` after the start, running every timer on the way at its own time."""
        self._run_to(self._start + round(seconds * 1e9))

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`, running every timer on the way at its own time."""
        self._run_to(self._now + round(seconds * 1e9))

    def _run_to(self, target: int) -> None:
        while True:
            with self._lock:
                when = self._heap.next_ns()
                if when is None or when > target:
                    break
                fn = self._heap.pop()
            self._now = max(self._now, when)
            if fn is not None:
                fn()
        self._now = max(self._now, target)
