"""pyrate-limiter: a log of all calls in the window, in memory."""

from __future__ import annotations

from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate

from benchmarks import sizes
from benchmarks.measure import Round, each

DISTRIBUTION = "pyrate-limiter"


def try_acquire() -> Round:
    limiter = Limiter(InMemoryBucket([Rate(1_000_000_000, Duration.SECOND)]))
    ask = limiter.try_acquire
    return lambda: each(lambda: ask("key", blocking=False), sizes.TRIES)


CASES = {"try-acquire": try_acquire}
