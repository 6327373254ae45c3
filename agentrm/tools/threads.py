"""Blocking work of environments on threads of its own, awaited or not."""

from __future__ import annotations

from collections.abc import Callable

from agentrm.adapters.signals import Signal
from agentrm.adapters.threads import borrow

__all__ = ["in_thread", "in_thread_async"]


def in_thread(job: Callable[[], object]) -> None:
    """Runs the job and does not wait for it."""
    worker = borrow()

    def run() -> None:
        try:
            job()
        finally:
            worker.give_back()

    worker.submit(run)


async def in_thread_async(job: Callable[[], bool | None]) -> bool | None:
    """Runs the job and returns its result or raises its error, without blocking the loop. When this is cancelled, the
    job goes on."""
    over: Signal = Signal()
    result: list[bool | None] = []
    problem: list[BaseException] = []

    def run() -> None:
        try:
            result.append(job())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            problem.append(error)
        over.set()

    in_thread(run)
    await over.wait()
    if problem:
        raise problem[0]
    return result[0]
