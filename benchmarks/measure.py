"""How a case is measured: rounds of ours and of the peer take turns in one process, and medians are kept.

A shared machine changes speed from second to second, so the figure to read is the ratio of two neighbouring rounds, not
either time. What one thread does is timed by the processor time that the process used, so that a neighbour's work does
not count; what several threads do, or what waits for a timer, by the clock on the wall.
"""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns

Round = Callable[[], float]
"""One round: does the work and returns nanoseconds per operation."""


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison. `ratio` is peer_ns / ours_ns, the median over rounds; `low` and `high` are its extremes."""

    name: str
    peer: str
    ours_ns: float
    peer_ns: float
    ratio: float
    low: float
    high: float
    bar: float | None
    note: str = ""

    @property
    def spread(self) -> float:
        """Width of the ratio's range over its median."""
        return (self.high - self.low) / self.ratio

    @property
    def passed(self) -> bool:
        return self.bar is None or self.ratio >= self.bar


def each(operation: Callable[[], object], n: int) -> float:
    """Nanoseconds of one of `n` calls, the loop included."""
    start = process_time_ns()
    for _ in range(n):
        operation()
    return (process_time_ns() - start) / n


def whole(work: Callable[[], object], n: int) -> float:
    """Nanoseconds of one of the `n` operations that `work` does."""
    start = process_time_ns()
    work()
    return (process_time_ns() - start) / n


def together(
    worker: Callable[[Callable[[], bool]], int], threads: int, seconds: float, *, busy: bool = False
) -> float:
    """Nanoseconds an operation while `threads` threads work, each `worker(go)` counting its operations as long as
    `go()`; with one more that only computes if `busy`."""
    stop = threading.Event()
    counts = [0] * threads
    ready = threading.Barrier(threads + 1)
    go = lambda: not stop.is_set()  # noqa: E731 - shared by all workers, as cheap as it gets

    def run(i: int) -> None:
        ready.wait()
        counts[i] = worker(go)

    def compute() -> None:
        x = 1
        while not stop.is_set():
            for _ in range(1000):
                x = x * 31 % 65_537

    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    if busy:
        workers.append(threading.Thread(target=compute))
    for w in workers:
        w.start()
    ready.wait()
    start = perf_counter_ns()
    stop.wait(seconds)
    stop.set()
    took = perf_counter_ns() - start
    for w in workers:
        w.join()
    return took / max(1, sum(counts))


def compare(name: str, peer: str, ours: Round, theirs: Round, rounds: int, bar: float | None, note: str = "") -> Result:
    """Medians of `rounds` rounds of both, in turns, after one of each that does not count."""
    ours(), theirs()
    pairs = []
    for i in range(rounds):
        gc.collect()
        a, b = (ours(), theirs()) if i % 2 else (theirs(), ours())
        pairs.append((a, b) if i % 2 else (b, a))
    return of_rounds(name, peer, pairs, bar, note)


def of_rounds(name: str, peer: str, pairs: Sequence[tuple[float, float]], bar: float | None, note: str = "") -> Result:
    """The result of rounds that were timed as (ours, peer's)."""
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    return Result(
        name,
        peer,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        bar,
        note,
    )
