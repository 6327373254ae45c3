"""throttled-py: a toolkit of algorithms over stores; its quickest one (GCRA), in memory."""

from __future__ import annotations

import throttled

from benchmarks import sizes
from benchmarks.measure import Round, each

DISTRIBUTION = "throttled-py"


def try_acquire() -> Round:
    limiter = throttled.Throttled(
        key="key",
        using=throttled.RateLimiterType.GCRA.value,
        quota=throttled.rate_limiter.per_sec(1_000_000_000, burst=1_000_000_000),
        store=throttled.MemoryStore(),
    )
    limit = limiter.limit
    return lambda: each(limit, sizes.TRIES)


CASES = {"try-acquire": try_acquire}
