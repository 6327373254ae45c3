"""Which program is in which slot of an engine? Bookkeeping alone: whoever moves the state asks here first.

A slot holds one sequence's keys and values. A program keeps its slot between its turns for as long as no other needs
it; the one that was idle longest makes room first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

__all__ = ["Slot", "Slots"]


@dataclass(slots=True, eq=False)
class Slot:
    """One slot. `program`: whose state is in it, None if nobody's."""

    number: int
    program: str | None = None
    busy: bool = False


class Slots:
    """The slots of one engine, used from one event loop. They may number none, as long as the engine was not asked."""

    def __init__(self) -> None:
        self._idle: dict[int, Slot] = {}
        """By number, the one that was left longest ago first."""
        self._all: list[Slot] = []
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def resize(self, count: int) -> None:
        """The engine has `count` slots. A change means that it was started anew: all of them are empty then."""
        if count != len(self._all):
            self._all = [Slot(number) for number in range(count)]
            self._idle = {slot.number: slot for slot in self._all}
            self._wake(count)

    def emptied(self) -> None:
        """The engine lost what was in its slots."""
        for slot in self._all:
            slot.program = None

    def of(self, program: str) -> Slot | None:
        """The idle slot that holds the program's state, if there is one."""
        return next((slot for slot in self._idle.values() if slot.program == program), None)

    async def take(self, program: str) -> Slot:
        """A slot to run the program in: its own, an empty one, or the one that was idle longest, waiting until one is.
        The caller moves the state and then notes the program in the slot. Raises asyncio.CancelledError only."""
        while True:
            empty = next((slot for slot in self._idle.values() if slot.program is None), None)
            slot = self.of(program) or empty or next(iter(self._idle.values()), None)
            if slot is not None:
                return self.claim(slot)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():  # woken and cancelled at once: the wake goes on
                    self._wake(1)
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def claim(self, slot: Slot) -> Slot:
        """Takes an idle slot."""
        del self._idle[slot.number]
        slot.busy = True
        return slot

    def give(self, slot: Slot) -> None:
        """Gives a slot back. One of an earlier life of the engine is dropped."""
        slot.busy = False
        if slot.number < len(self._all) and self._all[slot.number] is slot:
            self._idle[slot.number] = slot
            self._wake(1)

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
