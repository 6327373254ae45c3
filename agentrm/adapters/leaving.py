"""Blocking work that makes calls, awaited: when its task is cancelled, it leaves those calls.

A thread can't be stopped, and a framework whose steps run on threads goes on in them after its run was cancelled. So
the calls in such a step end with it: those that wait leave the queue, new ones are refused, and whoever waits in the
thread for one that runs gets WorkCancelled at once. What that one runs is a zombie of its pool until it ends, and what
it returns then is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from agentrm.cancellation import cancellable
from agentrm.threads import on_thread

__all__ = ["Leaving", "current_leaving", "leavable"]

T = TypeVar("T")
_current: ContextVar[Leaving | None] = ContextVar("agentrm_leaving", default=None)


def current_leaving() -> Leaving | None:
    """The innermost step that this code runs in."""
    return _current.get()


class Leaving:
    """One step, and the calls that somebody waits for in it. From any thread."""

    __slots__ = ("_left", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], object]] = set()
        self._left = False

    def watch(self, leave: Callable[[], object]) -> None:
        """`leave()` is called when the step is left, at once if it was."""
        with self._lock:
            left = self._left
            if not left:
                self._waiting.add(leave)
        if left:
            leave()

    def forget(self, leave: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.discard(leave)

    def leave(self) -> None:
        with self._lock:
            self._left, waiting = True, list(self._waiting)
            self._waiting.clear()
        for leave in waiting:
            leave()


async def leavable(fn: Callable[[], T]) -> T:
    """`fn()`, which blocks and makes calls by `agentrm.adapters.call`, awaited on a thread of ours."""
    scope, leaving = cancellable(), Leaving()

    def run() -> T:  # in a copy of the context, which ends with it
        outer = _current.get()
        _current.set(leaving)
        if outer is not None:
            outer.watch(leaving.leave)
        try:
            with scope:
                return fn()
        finally:
            if outer is not None:
                outer.forget(leaving.leave)

    try:
        return await on_thread(run)
    except (asyncio.CancelledError, GeneratorExit):
        scope.cancel("whoever waited for it was cancelled")
        leaving.leave()
        raise
