"""The event loops in which calls wait; of one that is closed, nobody is left to end the calls."""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrm.scheduling.gate import Gate

__all__ = ["Loops"]


class Loops:
    """Those of one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._seen: dict[int, weakref.ref[AbstractEventLoop]] = {}

    def seen(self, loop: AbstractEventLoop) -> AbstractEventLoop:
        """Remembers a loop in which calls wait, so that they can be let go when it is closed."""
        ref = self._seen.get(id(loop))
        if ref is None or ref() is not loop:
            self._seen[id(loop)] = weakref.ref(loop)
        return loop

    def bury(self) -> None:
        """Lets go what belongs to closed loops: nobody is left to end it."""
        gate = self._gate
        for lease in list(gate.leases.values()):
            task = lease._task
            if task is not None and task.get_loop().is_closed():
                gate.release(lease, True)
        closed = [key for key, ref in list(self._seen.items()) if (loop := ref()) is None or loop.is_closed()]
        if not closed:
            return
        for key in closed:
            self._seen.pop(key, None)
        for lease in reversed(list(gate.queued.values())):  # from the end: so none of them is granted on the way
            if lease._loop is not None and lease._loop.is_closed():
                gate.drop(lease)
        gate.deliver()
        gate.arm()
