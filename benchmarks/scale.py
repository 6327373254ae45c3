"""What a cycle of the kernel costs as more calls wait, and as more tenants share: both should be flat."""

from __future__ import annotations

import gc
import statistics
from functools import partial

from benchmarks import sizes
from benchmarks.measure import Result, of_rounds, whole
from benchmarks.ours.kernel import Traffic

WAITERS = (10, 100, 1_000, 10_000, 100_000)
TENANTS = (1, 10, 100, 1_000)
Curve = list[tuple[int, float]]


def _curve(points: tuple[int, ...], make: dict[int, Traffic], rounds: int) -> list[dict[int, float]]:
    """Nanoseconds a cycle at each point, round by round: each round visits all points, so that they see one machine."""
    n = sizes.CYCLES // 2
    for traffic in make.values():
        traffic.cycles(n)
    taken = []
    for i in range(rounds):
        gc.collect()
        order = points if i % 2 else points[::-1]
        taken.append({p: whole(partial(make[p].cycles, n), n) for p in order})
    return taken


def _result(name: str, points: tuple[int, ...], taken: list[dict[int, float]], what: str) -> tuple[Result, Curve]:
    first, last = points[0], points[-1]
    pairs = [(t[last], t[first]) for t in taken]
    curve = [(p, statistics.median(t[p] for t in taken)) for p in points]
    return of_rounds(name, f"{first} {what}", pairs, 0.5, f"ours: {last:,} {what}"), curve


def waiters(rounds: int) -> tuple[Result, Curve]:
    """100,000 waiting against 10."""
    made = {n: Traffic(n) for n in WAITERS}
    return _result("scale-waiters", WAITERS, _curve(WAITERS, made, rounds), "waiting")


def tenants(rounds: int) -> tuple[Result, Curve]:
    """1,000 tenants with two calls each waiting, against one tenant with as many."""
    made = {n: Traffic(2 * TENANTS[-1], tenants=n, agents=2) for n in TENANTS}
    return _result("scale-tenants", TENANTS, _curve(TENANTS, made, rounds), "tenants")
