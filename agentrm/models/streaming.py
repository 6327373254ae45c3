"""Reads a blocking iterator from an event loop, one item at a time, without blocking the loop."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


async def iterate_in_thread(start: Callable[[Callable[[], bool]], Iterator[T]]) -> AsyncGenerator[T, None]:
    """Yields what `start(cancelled)` yields; the iterator is made and run in a thread of its own.

    When the reader is cancelled or closes this generator it is free at once, and `cancelled()` says True in
    the thread from then on; the thread ends as soon as the iterator heeds that. The thread sees the caller's
    context variables. The loop's shared executor is left alone: a generation takes seconds, and the executor
    has few threads.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[_Item[T] | _End] = asyncio.Queue()
    dropped = threading.Event()

    def post(message: _Item[T] | _End) -> None:
        try:
            loop.call_soon_threadsafe(arrived.put_nowait, message)
        except RuntimeError:  # the loop is closed: nobody reads any more
            dropped.set()

    def work() -> None:
        error: BaseException | None = None
        try:
            for value in start(dropped.is_set):
                post(_Item(value))
                if dropped.is_set():
                    break
        except BaseException as raised:  # noqa: BLE001 - it is raised again in the reader
            error = raised
        _running.pop(threading.current_thread(), None)
        post(_End(error))

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="agentrm-generate", daemon=True)
    _running[thread] = dropped
    thread.start()
    try:
        while isinstance(message := await arrived.get(), _Item):
            yield message.value
        if message.error is not None:
            raise message.error
    finally:
        dropped.set()


_running: dict[threading.Thread, threading.Event] = {}


def _stop_all() -> None:
    """Before the interpreter ends: a daemon thread that it kills inside torch takes the whole process down."""
    for thread, dropped in list(_running.items()):
        dropped.set()
        thread.join()


atexit.register(_stop_all)
