"""Which programs keep their context on which backend, and whose turn runs?

A pure state machine: time comes in, decisions come out; no clock, no I/O, no tasks. Live traffic and the simulator
drive the same one.

Theory of operation
-------------------
1. A backend's cache is bounded. A program that is *resident* counts with its whole context, running or between turns; a
   prefix that several share counts once. The sum stays within the capacity, so the engine has no reason to throw away
   what will be used again: bounding the working set is where the gain is ("ThunderAgent", arXiv 2602.13692).
2. A turn of a resident program runs at once. Needs it more room, programs between two turns are *paused* for it: who
   has been paused least, of the lowest class, whose next turn is farthest away, the youngest first. A running turn is
   never interrupted. If all others run, the turn waits for one of them to end.
3. Paused programs and newcomers wait in one queue for all backends (`waiting.py`). They take room that is free below a
   mark; room of a program whose next turn is farther away than it is worth keeping (`predict.Idle.hold_for`: cost of
   holding against cost of computing again); and, once they have waited for longer than `patience_s`, room of any that
   is between turns and has had its time. Whoever can't be placed and has been passed often enough gets a backend
   reserved.
4. Placement is by predicted seconds: prompt that is not in the cache, prompts queued before it, and how full a
   backend is. So a program resumes where it is warm unless another backend wins.
5. Estimates are corrected by what turns really used, and replaced by it when a turn is settled. Every way out of a turn
   (`settle`, `cancel`, `requeue`, `end`) clears what it counted; a late one changes nothing.

Use
---
    scheduler = ProgramScheduler()
    scheduler.set_backend("gpu0", 1_000_000, now)
    ticket = scheduler.request("p1", tokens=1200, now=now)
    if ticket.state == "granted": ...              # send it to ticket.backend
    scheduler.settle(ticket, now, input_tokens=1190, output_tokens=310, tool="bash")
    changes = scheduler.take()                     # after every call: what was granted, paused, forgotten besides
    scheduler.next_due(now)                        # call tick(now) then, at the latest

Not thread-safe: call it from one thread or event loop, or under one lock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from agentrm.errors import QueueFull, RequestTooLarge
from agentrm.identity import Priority
from agentrm.programs.predict import Growth, IdleTimes, ProgramEnds, TurnTokens
from agentrm.programs.program import Changes, Paused, Prefix, Program, Ticket
from agentrm.programs.residency import BackendState
from agentrm.programs.room import enough, growth, idle_victims, lacks, private_tokens, victims
from agentrm.programs.settings import ProgramSettings
from agentrm.programs.waiting import NEWCOMER, RESUME, TURN, WaitingQueue

__all__ = ["ProgramScheduler", "ProgramStatistics"]

_WINDOW = 16
_RECHECK_S = 1.0
_MOST_OFF = 4.0  # an estimate is not believed to be farther off than this


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """A moment's counts. Tokens by backend."""

    programs: int
    resident: int
    paused: int
    waiting: int
    running: int
    used_tokens: dict[str, int]
    capacity_tokens: dict[str, int]
    granted: int
    pauses: int
    refused: int


class ProgramScheduler:
    """The scheduler of programs over any number of backends; see the module for how it decides."""

    def __init__(self, settings: ProgramSettings | None = None) -> None:
        self.settings = settings or ProgramSettings()
        self.programs: dict[str, Program] = {}
        """All that have not ended, by id."""
        self.backends: dict[str, BackendState] = {}
        self.idle_times, self.turn_tokens, self.program_ends = IdleTimes(), TurnTokens(), ProgramEnds()
        self.growth = Growth()
        self._queue = WaitingQueue(
            self.settings.weights, patience_s=self.settings.patience_s, ageing_s=self.settings.ageing_s
        )
        self._numbers = itertools.count(1)
        self._idle: dict[str, Program] = {}  # programs without a turn, the longest idle first
        self._granted: list[Ticket] = []
        self._paused: list[Paused] = []
        self._ended: list[Program] = []
        self._grants = self._pauses = self._refused = 0
        self._last_grant: float | None = None
        self._interval = 1.0  # seconds between grants of turns that waited, smoothed

    # --- backends ---

    def set_backend(
        self,
        name: str,
        capacity_tokens: int,
        now: float,
        *,
        prefill_tokens_per_s: float = 8000.0,
        slots: int | None = None,
    ) -> None:
        """Adds a backend, or says anew what it holds (an engine that was restarted may have another capacity).

        `capacity_tokens`: its KV cache. `prefill_tokens_per_s`: how fast it computes prompts when it does nothing else.
        `slots`: turns it can run at once, None: as many as fit. Raises ValueError for values that cannot be.
        """
        if capacity_tokens < 1 or not prefill_tokens_per_s > 0 or (slots is not None and slots < 1):
            raise ValueError(
                f"backend {name!r}: capacity_tokens={capacity_tokens}, prefill_tokens_per_s={prefill_tokens_per_s} and "
                f"slots={slots} must be above 0"
            )
        backend = self.backends.get(name)
        if backend is None:
            self.backends[name] = BackendState(name, capacity_tokens, prefill_tokens_per_s, slots)
        else:
            backend.capacity, backend.prefill_rate, backend.slots = capacity_tokens, prefill_tokens_per_s, slots
            self._relieve(backend, now)
        self._serve(now)

    def backend_up(self, name: str, now: float) -> None:
        """It answers again, with an empty cache."""
        self.backends[name].up = True
        self._serve(now)

    def backend_down(self, name: str, now: float) -> None:
        """It does not answer: nothing is granted on it; its residents are paused and resume elsewhere before newcomers.

        Turns that run there stay granted until their caller says what became of them: `requeue` those that may be sent
        again, `cancel` the others.
        """
        backend = self.backends[name]
        backend.up = False
        for program in list(backend.residents.values()):
            self._pause(program, backend)
            program._dropped_at = -(1 << 62)  # nothing of it is warm there
        backend.backlog = 0
        self._serve(now)

    def remove_backend(self, name: str, now: float) -> None:
        """It is gone for good. Turns that run there may still be settled, cancelled or requeued."""
        self.backend_down(name, now)
        del self.backends[name]

    # --- turns ---

    def request(
        self,
        program_id: str,
        tokens: int,
        now: float,
        *,
        tenant: str = "default",
        priority: Priority = "interactive",
        prefix: Prefix | None = None,
        max_output_tokens: int | None = None,
    ) -> Ticket:
        """Asks for a turn. The ticket is granted at once or waits; a program that is not known begins.

        `tokens`: the whole prompt, estimated; consistent estimates become exact after the program's first turn.
        `tenant`, `prefix`: taken at a program's first turn. `priority` holds for this turn.
        Raises QueueFull (with `retry_after`) when too many wait, RequestTooLarge when no backend could ever hold it.
        Then nothing was changed.
        """
        if tokens < 0:
            raise ValueError(f"tokens={tokens}: a prompt has 0 tokens or more")
        program = self.programs.get(program_id)
        known = program is not None
        if program is None:
            program = Program(program_id, tenant=tenant, priority=priority, now=now, prefix=prefix)
        expected = self._corrected(program, tokens)
        output = self.turn_tokens.expect(program_id)
        if max_output_tokens is not None:
            output = min(output, max_output_tokens)
        self._refuse(program, known, min(expected, tokens))
        self.programs[program_id] = program
        program.priority, program._estimated = priority, tokens
        if program.phase == "acting":
            self.idle_times.learn(program_id, program.tool, now - program.since)
            self.program_ends.learn(program.turns, program.tool, False)
        if not program._tickets:
            self._idle.pop(program_id, None)
            program.phase, program.since = "reasoning", now
        ticket = Ticket(program, next(self._numbers), expected, output, now)
        program._tickets.append(ticket)
        backend = self.backends.get(program.backend or "")
        if program.status == "resident" and backend is not None and self._fits_resident(backend, ticket, now):
            self._grant(ticket, backend, now)
            self._serve(now)
            return ticket
        ticket._kind = TURN if program.status == "resident" else RESUME if program.turns else NEWCOMER
        self._queue.add(ticket)
        self._serve(now)
        if ticket.state == "granted":
            self._granted.remove(ticket)
        return ticket

    def progress(self, ticket: Ticket, now: float, output_tokens: int = 0) -> None:
        """The turn answers and has written `output_tokens` so far. Optional; makes placement and counts more exact."""
        backend = self.backends.get(ticket.backend or "")
        if ticket.state != "granted" or backend is None:
            return
        if not ticket._started:
            ticket._started = True
            backend.backlog = max(0, backend.backlog - ticket._missing)
        if output_tokens > ticket._output:
            more = max(ticket._output, 64)
            ticket._output += more
            ticket._counted += more
            if ticket.program.status == "resident" and ticket.program.backend == backend.name:
                backend.claim(ticket.program, private_tokens(ticket.program))
                self._relieve(backend, now)

    def settle(
        self, ticket: Ticket, now: float, *, input_tokens: int, output_tokens: int, tool: str | None = None
    ) -> None:
        """The turn is over; exact usage replaces the estimates. `tool`: the tool that the answer asks for, if any."""
        if ticket.state != "granted":
            return
        program = ticket.program
        if program._estimated > 0 and input_tokens > 0 and len(program._tickets) == 1:
            program._ratio = min(_MOST_OFF, max(1 / _MOST_OFF, input_tokens / program._estimated))
        if not program.turns:
            program.first_tokens = input_tokens
        program.turns += 1
        self.growth.learn(input_tokens + output_tokens - program.first_tokens)
        program.context_tokens, program.prompt_tokens = input_tokens + output_tokens, input_tokens
        program.tool = tool
        self.turn_tokens.learn(program.id, output_tokens)
        self._leave(ticket, now)
        self._serve(now)

    def cancel(self, ticket: Ticket, now: float) -> None:
        """The turn is given up, waiting or running; what it counted is cleared. A program without any other turn ends
        if none was ever settled."""
        if ticket.state == "done":
            return
        self._leave(ticket, now)
        program = ticket.program
        if not program.turns and not program._tickets:
            self._forget(program)
        self._serve(now)

    def requeue(self, ticket: Ticket, now: float) -> None:
        """A granted turn whose backend failed before it answered waits again, in its old place, for any backend."""
        if ticket.state != "granted":
            return
        program = ticket.program
        self._uncount(ticket)
        ticket.state, ticket.backend, ticket.granted_at, ticket._counted = "waiting", None, None, 0
        if program.status == "resident":
            self.backends[program.backend or ""].claim(program, private_tokens(program))
        ticket._kind = TURN if program.status == "resident" else RESUME
        self._queue.add(ticket)
        self._serve(now)

    def end(self, program_id: str, now: float) -> None:
        """The program is over: its turns are cancelled, nothing of it counts any more. Unknown ids are ignored."""
        program = self.programs.get(program_id)
        if program is None:
            return
        for ticket in list(program._tickets):
            self._leave(ticket, now)
        self._forget(program)
        self._serve(now)

    # --- results ---

    def take(self) -> Changes:
        """What calls since the last `take` brought about besides their own result."""
        if not (self._granted or self._paused or self._ended):
            return _NOTHING
        found = Changes(tuple(self._granted), tuple(self._paused), tuple(self._ended))
        self._granted, self._paused, self._ended = [], [], []
        return found

    def tick(self, now: float) -> None:
        """Time has passed: forgets programs of which nothing is heard, lets in who has become due."""
        limit = now - self.settings.idle_ttl_s
        while self._idle:
            program = next(iter(self._idle.values()))
            if program.since > limit:
                break
            self.program_ends.learn(program.turns, program.tool, True)
            self._forget(program)
            self._ended.append(program)
        self._serve(now)

    def next_due(self, now: float) -> float | None:
        """When `tick` is needed next, in the terms of `now`; None: not before something else happens."""
        due = math.inf
        if self._idle:
            due = next(iter(self._idle.values())).since + self.settings.idle_ttl_s
        if len(self._queue) and any(b.up and b.residents for b in self.backends.values()):
            due = min(due, now + _RECHECK_S)
        return None if due == math.inf else due

    def statistics(self) -> ProgramStatistics:
        resident = sum(len(b.residents) for b in self.backends.values())
        return ProgramStatistics(
            programs=len(self.programs),
            resident=resident,
            paused=sum(p.status == "paused" for p in self.programs.values()),
            waiting=len(self._queue),
            running=sum(p.running for p in self.programs.values()),
            used_tokens={b.name: b.used for b in self.backends.values()},
            capacity_tokens={b.name: b.capacity for b in self.backends.values()},
            granted=self._grants,
            pauses=self._pauses,
            refused=self._refused,
        )

    # --- counting ---

    def _corrected(self, program: Program, tokens: int) -> int:
        grown = tokens - program._estimated
        if program.turns and grown >= 0:
            return program.prompt_tokens + round(program._ratio * grown)
        return round(program._ratio * tokens)

    def _refuse(self, program: Program, known: bool, tokens: int) -> None:
        most = max((b.capacity for b in self.backends.values()), default=None)
        if most is not None and tokens > most:
            self._refused += 1
            raise RequestTooLarge(
                f"a turn of program {program.id!r} needs {tokens} tokens of cache; the largest backend holds {most}. "
                "Shorten the context (compaction), or add a larger backend",
                agent=program.id,
            )
        allowed = self.settings.max_waiting * (2 if known else 1)
        if len(self._queue) >= allowed:
            self._refused += 1
            wait = min(600.0, max(1.0, self._interval * len(self._queue)))
            raise QueueFull(
                f"{len(self._queue)} turns wait for room already (programs.max_waiting); come back in {wait:.0f} s",
                agent=program.id,
                retry_after=wait,
                is_retryable=True,
            )

    def _leave(self, ticket: Ticket, now: float) -> None:
        """A ticket is over: uncounts it, and the program is idle if it was its last."""
        program = ticket.program
        if ticket.state == "granted":
            self._uncount(ticket)
        else:
            self._queue.remove(ticket)
        ticket.state = "done"
        program._tickets.remove(ticket)
        if ticket in self._granted:
            self._granted.remove(ticket)
        backend = self.backends.get(program.backend or "")
        if not program._tickets:
            program.phase, program.since = "acting", now
            self._idle[program.id] = program
            gone = self.program_ends.expect(program.turns, program.tool)
            idle = self.idle_times.expect(program.id, program.tool, gone)
            program.next_use = now + idle.median()
            if backend is not None:
                keep = self.settings.keep * backend.capacity / backend.prefill_rate
                program._displace_at = now + idle.hold_for(keep)
        if program.status == "resident" and backend is not None:
            backend.claim(program, private_tokens(program))
            self._relieve(backend, now)

    def _uncount(self, ticket: Ticket) -> None:
        backend = ticket._on
        ticket.program.running -= 1
        if backend is not None:
            backend.running -= 1
            if not ticket._started:
                backend.backlog = max(0, backend.backlog - ticket._missing)

    def _forget(self, program: Program) -> None:
        backend = self.backends.get(program.backend or "")
        if program.status == "resident" and backend is not None:
            backend.drop(program)
        program.status = "ended"
        del self.programs[program.id]
        self._idle.pop(program.id, None)
        self.idle_times.forget(program.id)
        self.turn_tokens.forget(program.id)

    def _pause(self, program: Program, backend: BackendState) -> None:
        backend.drop(program)
        program.status = "paused"
        program.pauses += 1
        self._pauses += 1
        self._paused.append(Paused(program, backend.name))
        for ticket in program._tickets:
            if ticket.state == "waiting":
                self._queue.remove(ticket)
                ticket._kind = RESUME
                self._queue.add(ticket)

    # --- deciding ---

    def _serve(self, now: float) -> None:
        """Grants whatever can be granted now."""
        while len(self._queue):
            window = list(itertools.islice(self._queue.first(now), _WINDOW))
            blocked: set[str] = set()
            granted: Ticket | None = None
            for ticket in self._by_warmth(window, now):
                if ticket._kind != TURN and all(not b.up or b.name in blocked for b in self.backends.values()):
                    continue
                backend = self._place(ticket, now, blocked)
                if backend is not None:
                    self._queue.remove(ticket)
                    self._queue.served(ticket)
                    granted = ticket
                    self._grant(ticket, backend, now)
                    self._granted.append(ticket)
                    self._pace(now)
                    break
                if self._owed(ticket, now):
                    self._reserve(ticket, blocked)
            if granted is None:
                return
            for ticket in window[: window.index(granted)]:
                ticket.passes += 1

    def _by_warmth(self, window: list[Ticket], now: float) -> Iterator[Ticket]:
        """Inside a class and kind the turns with most in the cache first; who was passed catches up."""
        for _, group in itertools.groupby(window, key=lambda t: (t.priority, t._kind, self._owed(t, now))):
            yield from sorted(group, key=lambda t: -self._warmest(t) - self.settings.ageing_tokens * t.passes)

    def _warmest(self, ticket: Ticket) -> int:
        program = ticket.program
        if program.prefix is None and program.status != "paused":
            return 0
        return max((b.warm(program, ticket.expected_tokens) for b in self.backends.values() if b.up), default=0)

    def _owed(self, ticket: Ticket, now: float) -> bool:
        late = now - ticket.arrived > self.settings.patience_s
        return late or ticket._kind == TURN or ticket.passes >= self.settings.passes

    def _reserve(self, ticket: Ticket, blocked: set[str]) -> None:
        """Nobody behind it may take new room on the backend where it will fit soonest."""
        free = [b for b in self.backends.values() if b.up and b.name not in blocked]
        home = self.backends.get(ticket.program.backend or "")
        if ticket._kind == TURN and home is not None:
            blocked.add(home.name)
        elif free:
            blocked.add(max(free, key=lambda b: b.capacity - b.busy()).name)

    def _pace(self, now: float) -> None:
        if self._last_grant is not None:
            self._interval += 0.1 * (now - self._last_grant - self._interval)
        self._last_grant = now

    def _place(self, ticket: Ticket, now: float, blocked: set[str]) -> BackendState | None:
        """The backend with the smallest predicted time on which there is room, having made it."""
        program = ticket.program
        home = self.backends.get(program.backend or "")
        if program.status == "resident" and home is not None:
            if self._fits_resident(home, ticket, now):
                return home
            if program.running:
                return None
            for backend in self.backends.values():  # its own is full of turns that run: rather move than wait
                if backend.up and backend.name not in blocked and lacks(backend, ticket, self.settings.admit) <= 0:
                    self._pause(program, home)
                    return backend
            return None
        choice: list[tuple[float, str, BackendState]] = []
        for backend in self.backends.values():
            if backend.up and backend.name not in blocked:
                choice.append((self._cost(ticket, backend), backend.name, backend))
        for _, _, backend in sorted(choice, key=lambda c: c[:2]):
            if self._make_room(backend, ticket, now):
                return backend
        return None

    def _cost(self, ticket: Ticket, backend: BackendState) -> float:
        """Predicted seconds of a turn there, in comparison to others."""
        missing = ticket.expected_tokens - backend.warm(ticket.program, ticket.expected_tokens)
        full = self.settings.balance * backend.used  # a full cache soon costs somebody a prefill
        return (missing + backend.backlog + full) / backend.prefill_rate

    def _fits_resident(self, backend: BackendState, ticket: Ticket, now: float) -> bool:
        if not backend.up or (backend.slots is not None and backend.running >= backend.slots):
            return False
        return self._displaced(backend, ticket, lacks(backend, ticket, 1.0), now)

    def _make_room(self, backend: BackendState, ticket: Ticket, now: float) -> bool:
        """Whether a paused program or a newcomer gets onto the backend."""
        if backend.slots is not None and backend.running >= backend.slots:
            return False
        if ticket._kind != NEWCOMER:
            return self._displaced(backend, ticket, lacks(backend, ticket, self.settings.resume), now)
        missing = lacks(backend, ticket, self.settings.admit)
        if backend.residents:
            growth = round(self.growth.tokens)
            missing += growth + backend.to_come(growth)
        return self._displaced(backend, ticket, missing, now)

    def _displaced(self, backend: BackendState, ticket: Ticket, missing: int, now: float) -> bool:
        """Pauses as many as are needed, and nobody if they don't suffice."""
        if missing <= 0:
            return True
        chosen = enough(backend, missing, victims(backend, ticket, now, self.settings))
        for program in chosen or ():
            self._pause(program, backend)
        return chosen is not None

    def _relieve(self, backend: BackendState, now: float) -> None:
        """What counts has outgrown the capacity: pauses programs between turns until it fits, as far as there are
        any."""
        if backend.used <= backend.capacity or len(backend.residents) == 1:
            return
        for program in idle_victims(backend, now):
            if backend.used <= backend.capacity:
                return
            self._pause(program, backend)

    def _grant(self, ticket: Ticket, backend: BackendState, now: float) -> None:
        program = ticket.program
        ticket.warm_tokens = backend.warm(program, ticket.expected_tokens)
        ticket._missing = ticket.expected_tokens - ticket.warm_tokens
        ticket._counted = growth(program, ticket)
        ticket.state, ticket.backend, ticket._on = "granted", backend.name, backend
        ticket.granted_at, ticket._started = now, False
        if program.status != "resident":
            program.admitted_at = now
            for other in program._tickets:
                if other.state == "waiting" and other._kind != TURN:
                    self._queue.remove(other)
                    other._kind = TURN
                    self._queue.add(other)
        backend.claim(program, private_tokens(program))
        backend.running += 1
        program.running += 1
        backend.backlog += ticket._missing
        self._grants += 1


_NOTHING = Changes()
