"""Everything at once: threads and tasks that succeed, raise, give up, cancel and drop streams. Nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable
from typing import Any

import agentrm
from agentrm.adapters import CallSpec, acall, acall_blocking, astream, astream_blocking, call, stream
from agentrm.adapters.conformance.harness import Threads, manager, run_async, until
from agentrm.adapters.conformance.provider import Provider, Refuse, Reply

LANES = 3
PLAN = [Reply(), Reply(usage=None), Refuse(400), Refuse(404)]


def test_no_mix_of_endings_loses_a_lane_or_opens_one_too_many(rng: random.Random) -> None:
    rm = manager(LANES, waiting={"max_s": 30})
    provider = Provider(*[rng.choice(PLAN) for _ in range(1500)], probe=lambda: rm.statistics().running)
    spec = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1)
    impatient = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1, wait_max=0)

    def thread(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            with contextlib.suppress(agentrm.QueueTimeout, Exception):
                kind = chance.randrange(4)
                if kind == 0:
                    call(rm, impatient, provider.call)
                elif kind == 1:
                    call(rm, spec, provider.call)
                else:
                    chunks: Any = stream(rm, spec, provider.stream)
                    for _ in range(chance.randrange(4)):
                        next(chunks, None)
                    if kind == 3:
                        chunks.close()
                    del chunks  # a caller that keeps a stream and asks for another lane waits for itself

    async def task(seed: int) -> None:
        chance = random.Random(seed)
        ways: list[Callable[[], Any]] = [
            lambda: acall(rm, spec, provider.acall),
            lambda: acall(rm, impatient, provider.acall),
            lambda: acall_blocking(rm, spec, provider.call),
            lambda: _read(astream(rm, spec, provider.astream), chance.randrange(4)),
            lambda: _read(astream_blocking(rm, spec, provider.stream), chance.randrange(4)),
        ]
        work = asyncio.ensure_future(chance.choice(ways)())
        if chance.random() < 0.4:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    async def tasks(seed: int) -> None:
        chance = random.Random(seed)
        await asyncio.gather(*[task(chance.randrange(2**32)) for _ in range(200)])

    seeds = [rng.randrange(2**32) for _ in range(8)]
    threads = Threads(
        *[lambda seed=seed: thread(seed) for seed in seeds[:6]],
        *[lambda seed=seed: run_async(lambda: tasks(seed)) for seed in seeds[6:]],
    )
    assert [outcome for outcome in threads.outcomes() if outcome is not None] == []
    until(rm, lambda s: s.running == 0 and s.waiting == 0, "that nothing is held and nobody waits")
    until(rm, lambda s: s.pools["default"].zombies == 0, "that no zombie is left")
    gc.collect()  # a stream whose loop ended before it was closed
    provider.wait_closed()
    assert max(provider.seen) <= LANES
    assert call(rm, spec, lambda: "and the next one runs") == "and the next one runs"


async def _read(chunks: Any, number: int) -> None:
    for _ in range(number):
        if await anext(chunks, None) is None:
            return
