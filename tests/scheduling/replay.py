"""Reads a manager's recorded events again and checks what the kernel promises of every single grant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrm.scheduling.events import Event


@dataclass(slots=True)
class Replay:
    """Of one pool without nesting and ageing, so that a ticket keeps its level. `passes`, `seconds`: the backfill
    bound."""

    lanes: int
    passes: int = 16
    seconds: float = 2.0
    zombies: int = 0
    waiting: dict[int, Event] = field(default_factory=dict)
    running: dict[int, Event] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    passed: dict[int, list[int]] = field(default_factory=dict)
    """By the handle of the ticket that was first in line of all: when it was passed, in nanoseconds."""
    granted: int = 0

    def read(self, events: Iterable[Event]) -> Replay:
        last = -1
        for e in events:
            assert e.seq == last + 1 or last < 0, f"events {last + 1} to {e.seq - 1} were lost"
            last = e.seq
            if e.kind != "penalty":
                getattr(self, f"_{e.kind}")(e)
        return self

    def _submit(self, e: Event) -> None:
        assert e.handle not in self.waiting and e.handle not in self.running, f"{e}: a handle twice"
        self.waiting[e.handle] = e

    def _grant(self, e: Event) -> None:
        mine = self.waiting.pop(e.handle)
        self.granted += 1
        for other in self.waiting.values():
            assert other.level >= mine.level or self._is_blocked(other, mine), (
                f"{mine} before {other}, which is more urgent"
            )
        older = [x for x in self.waiting.values() if x.agent == e.agent and x.level == mine.level and x.seq < mine.seq]
        for other in older:
            assert self._is_blocked(other, mine), f"{mine} before {other} of the same agent, which came first"
        if older and all(x.level >= mine.level for x in self.waiting.values()):
            self.passed.setdefault(older[0].handle, []).append(e.time_ns)
        self.running[e.handle] = e
        busy = len(self.running) + max(0, len(self.dead) - self.zombies)
        assert busy <= self.lanes, f"{busy} lanes of {self.lanes} are in use after {e}"

    @staticmethod
    def _is_blocked(other: Event, mine: Event) -> bool:
        """Whether it may be passed: it is larger, so what is left can be enough for one and not for the other."""
        return (other.tokens or 0) > (mine.tokens or 0)

    def _settle(self, e: Event) -> None:
        del self.running[e.handle]

    def _cancel(self, e: Event) -> None:
        del self.waiting[e.handle]

    def _reap(self, e: Event) -> None:
        del self.running[e.handle]
        self.dead.add(e.handle)

    def _zombie_end(self, e: Event) -> None:
        self.dead.remove(e.handle)

    def bounded(self) -> None:
        """No ticket that was first in line was passed more often, or for longer, than the bound allows."""
        for handle, times in self.passed.items():
            assert len(times) <= self.passes, f"{handle} was passed {len(times)} times"
            assert (times[-1] - times[0]) / 1e9 <= self.seconds, (
                f"{handle} was passed for {(times[-1] - times[0]) / 1e9} s"
            )

    def over(self) -> None:
        assert not self.waiting and not self.running and not self.dead
