"""10,000 coroutines that wait, and what it costs to let all of them through: the same for every queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import process_time_ns
from typing import Protocol

from benchmarks import sizes


class Turnstile(Protocol):
    """A thing that coroutines wait at until it lets them through, one at a time."""

    @property
    def wait(self) -> Callable[[], Awaitable[object]]: ...

    @property
    def release_one(self) -> Callable[[], object]: ...


async def _passage(make: Callable[[], Turnstile], each_releases: bool) -> float:
    turnstile = make()
    n = sizes.COROUTINES

    async def one() -> None:
        await turnstile.wait()
        if each_releases:
            turnstile.release_one()

    tasks = [asyncio.ensure_future(one()) for _ in range(n)]
    for _ in range(3):
        await asyncio.sleep(0)
    start = process_time_ns()
    for _ in range(1 if each_releases else n):
        turnstile.release_one()
    await _all(tasks)
    return (process_time_ns() - start) / n


async def _all(tasks: Sequence[asyncio.Future[None]]) -> None:
    """As gather, without its cost per task in the measured time: the last one to be queued is the last to pass."""
    for task in tasks:
        await task


def burst(make: Callable[[], Turnstile]) -> float:
    """Nanoseconds a coroutine when all are released at once."""
    return asyncio.run(_passage(make, False))


def chain(make: Callable[[], Turnstile]) -> float:
    """Nanoseconds a coroutine when each lets the next one in."""
    return asyncio.run(_passage(make, True))



