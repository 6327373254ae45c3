"""A function on a worker thread, awaited or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from agentrm.threads.signals import Signal
from agentrm.threads.work import Work
from agentrm.threads.workers import borrow

__all__ = ["in_thread", "on_thread", "to_its_end"]

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
