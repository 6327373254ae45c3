"""loco-agent: submit, acquire, serve and release of its scheduler, with four agents."""

from __future__ import annotations

import asyncio

from loco import Agent, SharedResource, Task
from loco.async_scheduler import AsyncLOCOScheduler

from benchmarks import sizes
from benchmarks.measure import Round, whole

DISTRIBUTION = "loco-agent"


def lease() -> Round:
    async def work() -> None:
        agents = [Agent(f"agent {i}") for i in range(4)]
        scheduler = AsyncLOCOScheduler(agents, SharedResource("lanes", 4))
        for _ in range(sizes.LEASES):
            await scheduler.submit_task("agent 0", Task(weight=1.0))
            async with scheduler.acquire("agent 0"):
                agents[0].serve_oldest_task()

    return lambda: whole(lambda: asyncio.run(work()), sizes.LEASES)


CASES = {"lease-async": lease}
