"""Time as a parameter: a clock says what time it is and calls back when a time has come.

The manager sets all of its timers on its clock, so under a `VirtualClock` everything it does is deterministic and
nothing sleeps.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "Timer", "VirtualClock"]


class Timer:
    """One pending callback. `cancel()` is idempotent and safe from any thread; a callback that has begun runs to its end."""

    __slots__ = ("fn", "when_ns")

    def __init__(self, when_ns: int, fn: Callable[[], object]) -> None:
        self.when_ns = when_ns
        self.fn: Callable[[], object] | None = fn

    def cancel(self) -> None:
        self.fn = None


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
    until the earliest of them: nothing polls."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._sleeping_until = 0

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> float:
        return time.time()

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        timer = Timer(when_ns, fn)
        with self._lock:
            heapq.heappush(self._heap, (when_ns, next(self._order), timer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentrm-timer", daemon=True)
                self._thread.start()
            elif when_ns < self._sleeping_until:
                self._sleeping_until = 0
                self._wake.release()
        return timer

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic_ns()
                due: list[Timer] = []
                while self._heap and (self._heap[0][0] <= now or self._heap[0][2].fn is None):
                    due.append(heapq.heappop(self._heap)[2])
                self._sleeping_until = self._heap[0][0] if self._heap else 1 << 62
                wait = (self._sleeping_until - now) / 1e9 if self._heap else None
                if due:
                    self._sleeping_until = 0
            for timer in due:
                fn, timer.fn = timer.fn, None
                if fn is not None:
                    fn()
            if not due:
                self._wake.acquire(timeout=None if wait is None else min(wait, threading.TIMEOUT_MAX))


class VirtualClock:
    """Time that moves only when a test or a simulation moves it; timers run in order of time, then of creation."""

    def __init__(self, start_ns: int = 1_000_000_000, wall: float = 1_700_000_000.0) -> None:
        self._now = start_ns
        self._start, self._wall = start_ns, wall
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()

    def now_ns(self) -> int:
        return self._now

    def wall(self) -> float:
        return self._wall + (self._now - self._start) / 1e9

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return (self._now - self._start) / 1e9

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        timer = Timer(when_ns, fn)
        heapq.heappush(self._heap, (when_ns, next(self._order), timer))
        return timer

    def next_timer_ns(self) -> int | None:
        """When the next timer is due, None if there is none."""
        while self._heap and self._heap[0][2].fn is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_until(self, seconds: float) -> None:
        """Moves to `seconds` after the start, running every timer on the way at its own time."""
        self._run_to(self._start + round(seconds * 1e9))

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`, running every timer on the way at its own time."""
        self._run_to(self._now + round(seconds * 1e9))

    def _run_to(self, target: int) -> None:
        while (when := self.next_timer_ns()) is not None and when <= target:
            timer = heapq.heappop(self._heap)[2]
            self._now = max(self._now, when)
            fn, timer.fn = timer.fn, None
            if fn is not None:
                fn()
        self._now = max(self._now, target)
