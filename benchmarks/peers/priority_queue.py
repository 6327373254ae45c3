"""queue.PriorityQueue: what a program without a scheduler puts its calls into."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable

from benchmarks import sizes
from benchmarks.measure import Round, together, whole

DISTRIBUTION = None


def _filled() -> tuple[queue.PriorityQueue[tuple[int, int, object]], Callable[[], int]]:
    q: queue.PriorityQueue[tuple[int, int, object]] = queue.PriorityQueue()
    order = itertools.count()
    for _ in range(sizes.WAITING):
        q.put((1, next(order), object()))
    return q, lambda: next(order)


def cycle() -> Round:
    q, order = _filled()
    put, get = q.put, q.get

    def work() -> None:
        for _ in range(sizes.CYCLES):
            put((1, order(), object()))
            get()

    return lambda: whole(work, sizes.CYCLES)


def _threads(count: int, busy: bool) -> Round:
    q, order = _filled()
    put, get = q.put, q.get

    def worker(go: Callable[[], bool]) -> int:
        n = 0
        while go():
            for _ in range(sizes.STRIDE):
                put((1, order(), object()))
                get()
            n += sizes.STRIDE
        return n

    return lambda: together(worker, count, sizes.SECONDS, busy=busy)


CASES = {
    "kernel-cycle": cycle,
    "kernel-cycle-8-threads": lambda: _threads(8, False),
    "kernel-cycle-busy-thread": lambda: _threads(1, True),
}
