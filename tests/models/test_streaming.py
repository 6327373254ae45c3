"""A blocking iterator read from an event loop: in order, with its errors, and never after the reader has
gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator

import pytest

from agentrm.models.streaming import iterate_in_thread

who = contextvars.ContextVar("who", default="nobody")


async def test_items_arrive_in_order_and_the_loop_runs_meanwhile() -> None:
    go = threading.Event()

    def start(cancelled: Callable[[], bool]) -> Iterator[int]:
        yield 1
        assert go.wait(60)
        yield 2

    stream = iterate_in_thread(start)
    assert await anext(stream) == 1
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # the loop turns although the iterator is stuck
    go.set()
    assert await waiting == 2
    assert [item async for item in stream] == []


async def test_an_error_of_the_iterator_or_of_making_it_reaches_the_reader() -> None:
    def broken(cancelled: Callable[[], bool]) -> Iterator[int]:
        yield 1
        raise KeyError("in the middle")

    def refused(cancelled: Callable[[], bool]) -> Iterator[int]:
        raise ValueError("at the start")

    stream = iterate_in_thread(broken)
    assert await anext(stream) == 1
    with pytest.raises(KeyError, match="in the middle"):
        await anext(stream)
    with pytest.raises(ValueError, match="at the start"):
        await anext(iterate_in_thread(refused))


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_reader_that_goes_is_free_at_once_and_the_iterator_is_told(how: str) -> None:
    release, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def start(cancelled: Callable[[], bool]) -> Iterator[int]:
        try:
            yield 1
            assert release.wait(60)  # a step that cannot be interrupted
            seen.append(cancelled())
        finally:
            ended.set()

    stream = iterate_in_thread(start)
    assert await anext(stream) == 1
    if how == "cancelled":
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task  # although the iterator is still in its step
    else:
        await stream.aclose()
    assert not ended.is_set() or how == "closed"
    release.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert seen in ([True], [])  # told, or ended at the yield


async def test_the_iterator_sees_the_context_variables_of_its_reader() -> None:
    def start(cancelled: Callable[[], bool]) -> Iterator[str]:
        yield who.get()

    who.set("somebody")
    assert [item async for item in iterate_in_thread(start)] == ["somebody"]


def test_a_loop_that_was_closed_stops_the_iterator() -> None:
    release, ended = threading.Event(), threading.Event()

    def start(cancelled: Callable[[], bool]) -> Iterator[int]:
        try:
            yield 0
            assert release.wait(60)
            number = 0
            while not cancelled():
                yield (number := number + 1)
        finally:
            ended.set()

    loop = asyncio.new_event_loop()
    stream = iterate_in_thread(start)
    assert loop.run_until_complete(anext(stream)) == 0
    loop.close()  # killed, not shut down: nothing closes the stream
    release.set()
    assert ended.wait(60)
