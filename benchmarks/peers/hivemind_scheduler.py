"""hivemind-scheduler: its admission gate and its requests-per-minute check, as its proxy uses them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from hivemind.scheduler import AdmissionController, RateLimiter

from benchmarks import sizes
from benchmarks.measure import Round, whole

DISTRIBUTION = "hivemind-scheduler"


LIMITS = SimpleNamespace(name="peer", default_requests_per_minute=10**9, default_tokens_per_minute=10**12)


def lease() -> Round:
    async def work() -> None:
        gate, rate = AdmissionController(4), RateLimiter()
        rate.configure_from_profile(LIMITS)
        for _ in range(sizes.LEASES):
            async with gate:
                await rate.wait_if_throttled()
                rate.record_request()
                rate.record_tokens(10)

    return lambda: whole(lambda: asyncio.run(work()), sizes.LEASES)


CASES = {"lease-async": lease}
