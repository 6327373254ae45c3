"""ThunderAgent, as its paper says (arXiv 2602.13692) and as its code does (commit a7eef77): the rules we are compared
with.

Both look at the engines every five seconds. What the sums exceed is paused, the smallest first, programs between two
calls before running ones; what is paused or new waits in one queue and is let in, programs with a call pending first,
the smallest first, the largest of the chosen first onto the engine with most room.

The paper: what an idle program counts halves every second, in both checks, and pausing marks just enough running
programs. The code: idle programs count whole; once the idle ones are used up, every running one is marked; later
calls of active programs pass unchecked; a waiter is let in after half an hour whatever there is; each program counts
100 tokens more.
"""

from __future__ import annotations

import math

from agentrm.simulation.program_routers import OnEngines
from agentrm.simulation.programs import Fleet, Running

__all__ = ["ThunderAgent"]

TICK_S = 5.0
BUFFER = 100
FORCED_S = 1800.0


class ThunderAgent(OnEngines):
    """One router for all engines."""

    def __init__(self, fleet: Fleet, *, paper: bool) -> None:
        super().__init__(fleet)
        self.paper = paper
        self._tokens: dict[int, int] = {}
        self._idle_since: dict[int, float] = {}  # programs between two calls
        self._marked: set[int] = set()
        self._paused: dict[int, tuple[Running, float]] = {}  # with the time since when a call waits, inf: none does
        self._next = TICK_S

    def _counted(self, key: int, now: float) -> float:
        tokens = self._tokens[key]
        idle = self._idle_since.get(key)
        if self.paper and idle is not None:
            return tokens * math.pow(2.0, -min(60.0, now - idle))
        return tokens

    def _room(self, number: int, now: float) -> float:
        buffer = 0 if self.paper else BUFFER
        return self.fleet.kv_tokens - sum(self._counted(k, now) + buffer for k in self.on[number])

    def request(self, program: Running, now: float) -> None:
        key, buffer = program.key, 0 if self.paper else BUFFER
        self._tokens[key] = program.step.prompt
        self._idle_since.pop(key, None)
        for number, programs in enumerate(self.on):
            if key in programs:
                self.started.append((program, number))
                return
        if key not in self._paused and not self._paused:
            fitting = [n for n in range(len(self.on)) if self._room(n, now) >= program.step.prompt + buffer]
            if fitting:
                number = min(fitting, key=lambda n: sum(self._tokens[k] for k in self.on[n]))
                self._admit(program, number)
                return
        self._paused[key] = (program, now)

    def _admit(self, program: Running, number: int, pending: bool = True) -> None:
        self._paused.pop(program.key, None)
        self.on[number][program.key] = program
        if pending:
            self.started.append((program, number))

    def settled(self, program: Running, now: float) -> None:
        key = program.key
        self._tokens[key] = program.context
        self._idle_since[key] = now
        if key in self._marked:
            self._pause(program)

    def ended(self, program: Running, now: float) -> None:
        super().ended(program, now)
        self._paused.pop(program.key, None)
        self._marked.discard(program.key)
        self._idle_since.pop(program.key, None)
        self._tokens.pop(program.key, None)

    def _pause(self, program: Running) -> None:
        self._marked.discard(program.key)
        for programs in self.on:
            programs.pop(program.key, None)
        self._paused[program.key] = (program, math.inf)

    def next_tick(self, now: float) -> float:
        return self._next

    def tick(self, now: float) -> None:
        self._next = now + TICK_S
        if self.paper:
            self._pause_all(now)
            self._resume(now)
        else:
            self._resume(now)
            self._pause_all(now)
            for program, since in list(self._paused.values()):
                if now - since >= FORCED_S:
                    number = program.engine
                    if number is None:
                        number = min(range(len(self.on)), key=lambda n: len(self.on[n]))
                    self._admit(program, number)

    def _pause_all(self, now: float) -> None:
        for number, programs in enumerate(self.on):
            lacks = -self._room(number, now)
            idle = sorted((k for k in programs if k in self._idle_since), key=lambda k: self._tokens[k])
            for key in idle:
                if lacks <= 0:
                    break
                lacks -= self._counted(key, now) + (0 if self.paper else BUFFER)
                self._pause(programs[key])
            running = sorted((k for k in programs if k not in self._marked), key=lambda k: self._tokens[k])
            for key in running:
                if lacks <= 0:
                    break
                self._marked.add(key)
                if self.paper:
                    lacks -= self._tokens[key]

    def _resume(self, now: float) -> None:
        buffer = 0 if self.paper else BUFFER
        room = {n: self._room(n, now) for n in range(len(self.on))}
        room = {n: r for n, r in room.items() if r > BUFFER}
        total, chosen = sum(room.values()), list[Running]()

        def order(entry: tuple[Running, float]) -> tuple[int, int]:
            program, since = entry
            pending = since < math.inf
            return (0 if pending and program.at else 1 if pending else 2, self._tokens[program.key])

        for program, _ in sorted(self._paused.values(), key=order):
            need = self._tokens[program.key] + buffer
            if need <= total:
                total -= need
                chosen.append(program)
        chosen.sort(key=lambda p: -self._tokens[p.key])
        for program in chosen:
            if not room:
                return
            number = max(room, key=lambda n: room[n])
            need = self._tokens[program.key] + buffer
            if need > room[number]:
                continue
            room[number] -= need
            if room[number] <= BUFFER:
                del room[number]
            self._admit(program, number, pending=self._paused[program.key][1] < math.inf)
