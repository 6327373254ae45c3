"""aiolimiter, with asyncio.Semaphore around it for the lanes: a lease done by hand."""

from __future__ import annotations

import asyncio

from aiolimiter import AsyncLimiter

from benchmarks import sizes
from benchmarks.measure import Round, whole

DISTRIBUTION = "aiolimiter"


def lease() -> Round:
    async def work() -> None:
        lanes, limiter = asyncio.Semaphore(4), AsyncLimiter(1e9, 1.0)
        for _ in range(sizes.LEASES):
            async with lanes:
                async with limiter:
                    pass

    return lambda: whole(lambda: asyncio.run(work()), sizes.LEASES)


CASES = {"lease-async": lease}
