"""Threads for sync work whose caller may have to leave before it ends.

The threads of `concurrent.futures` are joined when the interpreter exits, so one hung call would hang the
exit; and their number is bounded, so hung calls would starve the others. These are daemons, one for each
piece of work that is at work, kept for reuse when idle. How many there are is bounded by the lanes and
zombies of the pools, not here."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Worker", "borrow"]

_IDLE_S = 30.0
_idle: deque[Worker] = deque()  # its operations are atomic: a lock could be wanted again by a finaliser under it


class Worker:
    """One thread. Jobs run one after the other, in the order of `submit`; a job may not raise. A worker
    that is neither given back nor referenced any more ends its thread."""

    __slots__ = ("__weakref__", "_dismissed", "_inbox")

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._dismissed = False
        self._start()

    def submit(self, job: Callable[[], None]) -> None:
        self._inbox.put(job)
        if self._dismissed:  # by a collection that finalised it before those who still had a last job for it
            self._dismissed = False
            self._start()

    def give_back(self) -> None:
        """For reuse. Once, and nothing may be submitted afterwards."""
        if not self._dismissed:
            _idle.append(self)

    def _start(self) -> None:
        arguments = (self._inbox, weakref.ref(self))
        threading.Thread(target=_run, args=arguments, name="agentrm-work", daemon=True).start()

    def __del__(self) -> None:
        self._dismissed = True
        self._inbox.put(None)


def _run(inbox: queue.SimpleQueue[Callable[[], None] | None], owner: weakref.ref[Worker]) -> None:
    while True:
        try:
            job = inbox.get(timeout=_IDLE_S)
        except queue.Empty:
            worker = owner()
            if worker is None:
                return
            with suppress(ValueError):  # not idle: it is lent out and will get a job
                _idle.remove(worker)
            del worker
            continue
        if job is None:
            return
        job()
        del job  # an idle thread keeps nothing of the last call alive


def borrow() -> Worker:
    """An idle worker, or a new one. Give it back when the work is done."""
    try:
        return _idle.pop()
    except IndexError:
        return Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # in a child process the threads do not exist
