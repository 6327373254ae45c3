"""limits: fixed and moving windows over pluggable storage; its quickest strategy, in memory."""

from __future__ import annotations

import limits

from benchmarks import sizes
from benchmarks.measure import Round, each

DISTRIBUTION = "limits"


def try_acquire() -> Round:
    limiter = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(1_000_000_000)
    hit = limiter.hit
    return lambda: each(lambda: hit(item, "key"), sizes.TRIES)


CASES = {"try-acquire": try_acquire}
