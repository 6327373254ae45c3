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

from agentrm.errors import ForkedError

__all__ = ["Worker", "borrow"]

_IDLE_S = 30.0
_forks = 0
"""How many there were between the first process and this one."""
_idle: deque[Worker] = deque()  # its operations are atomic: a lock could be wanted again by a finaliser under it


class Worker:
    """One thread. Jobs run one after the other, in the order of `submit`; a job may not raise. A worker
    that is neither given back nor referenced any more ends its thread. In a child of the process in which it was made
    it has none: `submit` raises ForkedError."""

    __slots__ = ("__weakref__", "_dismissed", "_forks", "_inbox")

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._dismissed, self._forks = False, _forks
        self._start()

    def submit(self, job: Callable[[], None]) -> None:
        if self._forks != _forks:
            raise ForkedError(
                "this work was begun before fork(), and its thread is the parent process's; "
                "begin it anew in the child, with a ResourceManager that is made there"
            )
        self._inbox.put(job)
        if self._dismissed:  # by a collection that finalised it before those who still had a last job for it
            self._dismissed = False
            self._start()

    def give_back(self) -> None:
        """For reuse. Once, and nothing may be submitted afterwards."""
        if not self._dismissed and self._forks == _forks:
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


def _in_child() -> None:
    """In a child process the threads do not exist."""
    global _forks
    _forks += 1
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
