"""A function on a worker thread, awaited or not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from agentrm.threads.signals import Signal
from agentrm.threads.work import Work
from agentrm.threads.workers import borrow

__all__ = ["in_thread", "in_time", "on_thread", "to_its_end"]

T = TypeVar("T")


def in_thread(job: Callable[[], object]) -> None:
    """Runs the job and does not wait for it. What it raises is logged: nobody else would hear of it."""
    worker = borrow()

    def run() -> None:
        try:
            job()
        except BaseException:
            logging.getLogger("agentrm").exception("work in the background failed")
        finally:
            worker.give_back()

    worker.submit(run)


def in_time(fn: Callable[[], T], limit_s: float) -> T:
    """`fn()`, waited for at most `limit_s` seconds, blocking this thread. Raises what it raises; TimeoutError when it
    is not over by then: it goes on, and nobody hears of its end. Where no thread can be started any more (at the exit
    of the process) it runs here, without a limit."""
    over = threading.Event()
    try:
        worker = borrow()
    except RuntimeError:
        return fn()
    work = Work(fn, over.set, worker.give_back)
    work.start(worker)
    try:
        ended = over.wait(limit_s)
    except BaseException:
        if not work.leave():
            worker.give_back()
        raise
    if not ended and work.leave():
        raise TimeoutError(f"not over after {limit_s:g} s")
    worker.give_back()
    return work.result()  # type: ignore[no-any-return]


async def on_thread(fn: Callable[[], T]) -> T:
    """`fn()`, which blocks, awaited on a worker thread of ours, with the caller's context variables and no lease. A
    caller that is cancelled leaves at once, and the work goes on."""
    over, worker = Signal(), borrow()
    work = Work(fn, over.set, worker.give_back)
    work.start(worker)
    try:
        await over.wait()
    except BaseException:
        if not work.leave():
            worker.give_back()
        raise
    worker.give_back()
    return work.result()  # type: ignore[no-any-return]


async def to_its_end(fn: Callable[[], T]) -> T:
    """As `on_thread`, but a caller that is cancelled, however often, leaves only when the work is over."""
    work = asyncio.ensure_future(on_thread(fn))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(work)
        raise
