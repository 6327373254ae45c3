"""A call that is cancelled at whichever point it sleeps leaves nothing behind: no lane, nobody in the queue."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import agentrm
from agentrm.adapters import CallSpec, ToolUse, acall, acall_blocking, astream, astream_blocking
from agentrm.adapters.conformance.harness import manager

MODEL = CallSpec(model="m", input_tokens=3, usage=lambda _: None, size=lambda _: 1)
TOOL = CallSpec(kind="tool", tool="t", use=ToolUse(lambda: "asked"))


async def _work() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "done"


async def _chunks() -> AsyncIterator[str]:
    for chunk in "abc":
        await asyncio.sleep(0)
        yield chunk


async def _read(chunks: Any) -> str:
    return "".join([chunk async for chunk in chunks])


async def _nested(rm: Any) -> str:
    return await acall(rm, TOOL, lambda: acall(rm, MODEL, _work))


PATHS: dict[str, Callable[[Any], Awaitable[str]]] = {
    "model": lambda rm: acall(rm, MODEL, _work),
    "tool": lambda rm: acall(rm, TOOL, _work),
    "nested": _nested,
    "blocking": lambda rm: acall_blocking(rm, MODEL, lambda: "done"),
    "stream": lambda rm: _read(astream(rm, MODEL, _chunks)),
    "blocking stream": lambda rm: _read(astream_blocking(rm, MODEL, lambda: iter("abc"))),
}


class _Watched:
    """A coroutine's steps, with a word before each sleep."""

    def __init__(self, steps: Any, asleep: Callable[[], None]) -> None:
        self._steps, self._asleep = steps, asleep

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        future = next(self._steps)
        self._asleep()
        return future

    def send(self, value: Any) -> Any:
        return self.__next__()

    def throw(self, *error: Any) -> Any:
        future = self._steps.throw(*error)
        self._asleep()
        return future

    def close(self) -> None:
        self._steps.close()


class Sleeps:
    """Counts how often a coroutine sleeps, and cancels its task when it does so for the chosen time."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._steps, self._at = work.__await__(), at

    def __await__(self) -> Any:
        task: Any = asyncio.current_task()
        count = 0

        def asleep() -> None:
            nonlocal count
            count += 1
            if count == self._at:
                task.cancel()

        return (yield from _Watched(self._steps, asleep))


async def _settled(rm: agentrm.ResourceManager) -> None:
    """What was left to threads and finalisers ends."""
    for _ in range(2000):
        state = rm.statistics()
        if not (state.running or state.waiting or sum(pool.zombies for pool in state.pools.values())):
            return
        gc.collect() if _ == 5 else None
        await asyncio.sleep(0.001)
    raise AssertionError(rm.statistics())


async def _freed_when_asked_for(rm: agentrm.ResourceManager, holders: list[agentrm.Lease]) -> None:
    """When a call has got into the queue, those that it waits for end."""
    while holders:
        if rm.statistics().waiting:
            for lease in holders:
                lease.release()
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("queued", [False, True], ids=["at once", "queued"])
@pytest.mark.parametrize("path", PATHS)
async def test_cancelled_at_any_sleep_it_leaves_nothing(path: str, queued: bool) -> None:
    at, ended = 1, False
    while not ended:
        rm = manager(1, tools=1)
        holders = [rm.lease(kind=kind, parent=None).acquire() for kind in ("model", "tool")] if queued else []
        freeing = asyncio.create_task(_freed_when_asked_for(rm, holders))
        sleeps = Sleeps(PATHS[path](rm), at)

        async def run(sleeps: Sleeps = sleeps) -> str:
            return await sleeps

        try:
            assert await asyncio.create_task(run()) in ("done", "abc")
            ended = True
        except asyncio.CancelledError:
            pass
        freeing.cancel()
        for lease in holders:
            lease.release()
        await _settled(rm)
        async with rm.lease(), rm.lease(kind="tool"):  # and the next one runs
            pass
        assert at < 50
        at += 1
    assert at > 2, "it was cancelled at least once"
