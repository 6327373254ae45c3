"""LiteLLM's request scheduler: a heap in a cache, read, checked and written as a whole by each call."""

from __future__ import annotations

import asyncio
import os
from time import process_time_ns

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing it asks the network

from litellm.scheduler import FlowItem, Scheduler

from benchmarks import sizes
from benchmarks.measure import Round

DISTRIBUTION = "litellm"


async def _waiting(depth: int) -> tuple[Scheduler, list[FlowItem]]:
    scheduler = Scheduler()
    items = [FlowItem(priority=i * 7919 % 3, request_id=f"{i:06}", model_name="model") for i in range(depth)]
    for item in items:
        await scheduler.add_request(item)
    return scheduler, items


def decide() -> Round:
    async def work() -> float:
        scheduler, items = await _waiting(sizes.DEPTH)
        items.sort(key=lambda item: (item.priority, item.request_id))
        start = process_time_ns()
        for i in range(sizes.SLOW):
            await scheduler.add_request(FlowItem(priority=2, request_id=f"z{i:06}", model_name="model"))
            if not await scheduler.poll(items[i], []):
                raise RuntimeError("the request on top was refused")
        return (process_time_ns() - start) / sizes.SLOW

    return lambda: asyncio.run(work())


def inversions(depth: int) -> tuple[int, int]:
    """(pairs served against their priority, pairs) when `depth` requests wait as its router makes them wait."""
    from benchmarks.ours.kernel import inverted

    async def work() -> list[int]:
        scheduler = Scheduler()
        served: list[int] = []

        async def healthy() -> list[object]:
            return [object()]

        async def one(i: int) -> None:
            item = FlowItem(priority=i * 7919 % 3, request_id=f"{i:06}", model_name="model")
            await scheduler.wait_for_turn(item, 30.0, healthy)
            served.append(item.priority)

        await asyncio.gather(*(one(i) for i in range(depth)))
        return served

    served = asyncio.run(work())
    return inverted(served), len(served) * (len(served) - 1) // 2


CASES = {"enqueue-decide-1000": decide}
