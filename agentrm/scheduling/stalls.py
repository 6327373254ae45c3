"""Tells the silence of a provider from a standstill of our own, in which nobody reads what the provider has sent.

An event loop stands still while blocking code or the collector runs in it. Whether it does, it is asked: the sweep
posts one question to each loop with calls that have been silent for longer than a sweep. Until the answer comes no more
silence counts for these calls, and whoever was silent for too long even so is judged in the loop itself, after it has
read its sockets once more. A loop that never answers keeps its calls until their fixed limits (`idle_s`, 300 s with
`auto`, and `run_s`), which look at the time alone. That the process as a whole stood still is known by a sweep that
comes too late. Where a call shows nothing while its loop or the process stands still again and again, `MOST_STANDS` of
these are excused.

When a standstill began is known up to a sweep or two. One that lasted longer than that is taken to have begun when the
loop was last heard of.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrm.clock import Clock
    from agentrm.scheduling.lease import Lease

__all__ = ["Stall", "Stalls", "excuse", "is_asked", "shown_ns", "silence_ns"]

MOST_STANDS = 8
"""So many are excused between two signs of life of a call: one whose loop stands still again and again can hang too."""
BRIEF_NS = 100_000_000
"""Shorter ones are a loop's ordinary work and not counted."""
TURNS = 5
"""So often the loop goes round after its answer: the sockets are read, then the tasks that wait for them go on."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The standstills since a lease's heartbeat at `beat_ns`; the next heartbeat makes it void. `stood_ns`: their
    length. `heard_ns`: when we were last known to be awake. `asked_ns`: when the loop was asked, 0 if it has answered.
    `stands`: how many they were.
    """

    beat_ns: int
    stood_ns: int
    heard_ns: int
    asked_ns: int = 0
    stands: int = 0


def _stall(lease: Lease) -> Stall:
    stall, beat = lease._stall, lease._beat_ns
    return stall if stall is not None and stall.beat_ns == beat else Stall(beat, 0, beat)


def is_asked(lease: Lease) -> bool:
    """Whether the lease's loop was asked since its last heartbeat and has not answered."""
    return lease._stall is not None and _stall(lease).asked_ns > 0


def _stood_ns(lease: Lease, now_ns: int) -> int:
    if lease._stall is None:
        return 0
    stall = _stall(lease)
    if not stall.asked_ns:
        return stall.stood_ns
    unanswered, before = now_ns - stall.asked_ns, stall.asked_ns - stall.heard_ns
    return stall.stood_ns + unanswered + (before if unanswered > before else 0)


def silence_ns(lease: Lease, now_ns: int) -> int:
    """How long the lease has been silent without being excused."""
    return now_ns - lease._beat_ns - _stood_ns(lease, now_ns)


def shown_ns(lease: Lease, since_ns: int, now_ns: int) -> int | None:
    """How long the provider took, of the time since then. None: that was a standstill for the most part, which says
    nothing about the provider."""
    if lease._stall is None:  # as nearly always
        return now_ns - since_ns
    stood = _stood_ns(lease, now_ns)
    shown = now_ns - since_ns - stood
    return shown if shown >= stood else None


# Two threads may excuse one lease at once, for the same standstill then: either one's account will do.


def excuse(lease: Lease, since_ns: int, now_ns: int) -> None:
    """The process stood still: that time is not the lease's silence."""
    stall = _stall(lease)
    if stall.asked_ns:
        _stood(lease, stall, now_ns)
    else:
        _add(lease, stall, now_ns - max(since_ns, stall.heard_ns), now_ns)


def _stood(lease: Lease, stall: Stall, now_ns: int) -> None:
    """The answer to a question, or what stands for it."""
    _add(lease, stall, _stood_ns(lease, now_ns) - stall.stood_ns, now_ns)


def _add(lease: Lease, stall: Stall, another_ns: int, now_ns: int) -> None:
    stood, stands = stall.stood_ns, stall.stands
    if another_ns >= BRIEF_NS and stands < MOST_STANDS:
        stood, stands = stood + another_ns, stands + 1
        lease._rm.gate.port.heartbeat(lease.handle, stall.beat_ns + stood)  # for the fixed limit
    lease._stall = Stall(stall.beat_ns, stood, now_ns, 0, stands)


class Stalls:
    """Asks the loops of one manager. `judge` is told which leases' loop has answered, in the loop's thread."""

    def __init__(self, clock: Clock, judge: Callable[[list[Lease]], object]) -> None:
        self._clock, self._judge = clock, judge
        self._asked: dict[AbstractEventLoop, list[Lease]] = {}

    def ask(self, silent: list[Lease], now_ns: int) -> list[Lease]:
        """Returns those that are in no loop, or in a closed one: about them nobody can be asked."""
        here: list[Lease] = []
        by_loop: dict[AbstractEventLoop, list[Lease]] = {}
        for lease in silent:
            task = lease._task
            loop = lease._loop if task is None else task.get_loop()
            if loop is not None and not loop.is_closed():
                by_loop.setdefault(loop, []).append(lease)
                continue
            if loop is not None:  # it will never answer
                lease._stall = None
            here.append(lease)
        for loop in list(self._asked):
            if loop not in by_loop:  # all of its calls have ended or were heard of
                self._asked.pop(loop, None)
        for loop, leases in by_loop.items():
            for lease in leases:
                stall = _stall(lease)
                if not stall.asked_ns:
                    lease._stall = Stall(stall.beat_ns, stall.stood_ns, stall.heard_ns, now_ns, stall.stands)
            asked = self._asked.setdefault(loop, leases)
            if asked is not leases:
                asked[:] = leases
                continue
            try:
                loop.call_soon_threadsafe(self._answer, loop)
            except RuntimeError:  # closed just now
                self._asked.pop(loop, None)
        return here

    def _answer(self, loop: AbstractEventLoop) -> None:
        leases = self._asked.pop(loop, None)
        if leases is None:
            return
        now = self._clock.now_ns()
        for lease in leases:
            if is_asked(lease):
                _stood(lease, _stall(lease), now)
        self._go_round(loop, leases, TURNS)

    def _go_round(self, loop: AbstractEventLoop, leases: list[Lease], turns: int) -> None:
        if turns:
            loop.call_soon(self._go_round, loop, leases, turns - 1)
        else:
            self._judge(leases)
