"""The whole manager: one lease with lanes and limits on, nobody in the way."""

from __future__ import annotations

import asyncio

from agentrm import ResourceManager
from benchmarks import sizes
from benchmarks.measure import Round, whole

LIMITS = [{"requests": 1_000_000, "per": 1}, {"tokens": 1_000_000_000, "per": 1}]


def _manager() -> ResourceManager:
    return ResourceManager(pools={"default": {"lanes": 4, "limits": LIMITS}})


def lease_async() -> Round:
    rm = _manager()

    async def work() -> None:
        for _ in range(sizes.LEASES):
            async with rm.lease(tokens=10):
                pass

    return lambda: whole(lambda: asyncio.run(work()), sizes.LEASES)


def lease_sync() -> Round:
    rm = _manager()

    def work() -> None:
        for _ in range(sizes.LEASES):
            with rm.lease(tokens=10):
                pass

    return lambda: whole(work, sizes.LEASES)


CASES = {"lease-async": lease_async, "lease-sync": lease_sync}
