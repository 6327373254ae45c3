"""LangChain's InMemoryRateLimiter: a token bucket without order, polled by those who wait."""

from __future__ import annotations

import threading

from langchain_core.rate_limiters import InMemoryRateLimiter

from benchmarks import sizes
from benchmarks.measure import Round, each, whole

DISTRIBUTION = "langchain-core"


def _limiter() -> InMemoryRateLimiter:
    return InMemoryRateLimiter(requests_per_second=1e7, max_bucket_size=1e7)


def try_acquire() -> Round:
    acquire = _limiter().acquire
    return lambda: each(lambda: acquire(blocking=False), sizes.TRIES)


def lease() -> Round:
    """A lane and a rate the way that it is done by hand: a semaphore around the limiter."""
    lanes, limiter = threading.Semaphore(4), _limiter()
    limiter.acquire()  # its bucket starts empty

    def work() -> None:
        for _ in range(sizes.LEASES):
            with lanes:
                limiter.acquire()

    return lambda: whole(work, sizes.LEASES)


CASES = {"try-acquire": try_acquire, "lease-sync": lease}
