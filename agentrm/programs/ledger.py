"""What counts where: programs come onto backends, grow, are paused and leave; turns are granted and end.

The books behind `ProgramScheduler`. Every way in or out of a backend passes here, so the sums are right whatever was
decided; who goes where is decided in `dispatch.py`.
"""

from __future__ import annotations

from agentrm.programs.predict import IdleTimes, ProgramEnds, TurnTokens
from agentrm.programs.program import Changes, Paused, Program, Ticket
from agentrm.programs.residency import BackendState
from agentrm.programs.room import growth, idle_victims, private_tokens, yields
from agentrm.programs.settings import ProgramSettings
from agentrm.programs.waiting import NEWCOMER, RESUME, TURN, WaitingQueue

__all__ = ["Ledger"]

_MOST_OFF = 4.0  # an estimate is not believed to be farther off than this


class Ledger:
    """All programs and backends, the queue of turns that wait, and what is learnt about them."""

    def __init__(self, settings: ProgramSettings) -> None:
        self.settings = settings
        self.programs: dict[str, Program] = {}
        self.backends: dict[str, BackendState] = {}
        self.idle_times, self.turn_tokens, self.program_ends = IdleTimes(), TurnTokens(), ProgramEnds()
        self.queue = WaitingQueue(settings)
        self.idle: dict[str, Program] = {}
        """Programs without a turn, the longest idle first."""
        self.granted: list[Ticket] = []
        self.paused: list[Paused] = []
        self.ended: list[Program] = []
        self.grants = self.pauses = 0

    def take(self) -> Changes:
        """What has come about since the last `take`."""
        if not (self.granted or self.paused or self.ended):
            return _NOTHING
        found = Changes(tuple(self.granted), tuple(self.paused), tuple(self.ended))
        self.granted, self.paused, self.ended = [], [], []
        return found

    # --- turns ---

    def corrected(self, program: Program, tokens: int) -> int:
        """The estimate of a prompt, corrected by how far the program's last one was off."""
        grown = tokens - program._estimated
        if program.turns and grown >= 0:
            return program.prompt_tokens + round(program._ratio * grown)
        return round(program._ratio * tokens)

    def arrived(self, ticket: Ticket, now: float) -> None:
        """A turn is asked for; the program is not idle any more."""
        program = ticket.program
        self.programs[program.id] = program
        if program.phase == "acting":
            self.idle_times.learn(program.id, program.tool, now - program.since)
            self.program_ends.learn(program.turns, program.tool, False)
        if not program._tickets:
            self.idle.pop(program.id, None)
            program.phase, program.since = "reasoning", now
        program._tickets.append(ticket)

    def progressed(self, ticket: Ticket, backend: BackendState, output_tokens: int) -> None:
        """A granted turn answers and has written so much."""
        if not ticket._started:
            ticket._started = True
            backend.backlog = max(0, backend.backlog - ticket._missing)
        if output_tokens > ticket._output:
            more = max(ticket._output, 64)
            ticket._output += more
            ticket._counted += more
            if ticket.program.status == "resident" and ticket.program.backend == backend.name:
                backend.claim(ticket.program, private_tokens(backend, ticket.program))

    def settled(self, ticket: Ticket, input_tokens: int, output_tokens: int, tool: str | None) -> None:
        """What a granted turn really used; `leave` follows."""
        program = ticket.program
        if program._estimated > 0 and input_tokens > 0 and len(program._tickets) == 1:
            program._ratio = min(_MOST_OFF, max(1 / _MOST_OFF, input_tokens / program._estimated))
        program.turns += 1
        program.context_tokens, program.prompt_tokens = input_tokens + output_tokens, input_tokens
        program.tool = tool
        self.turn_tokens.learn(program.id, output_tokens)

    def sort(self, ticket: Ticket) -> None:
        """Notes as what the turn comes."""
        program = ticket.program
        ticket._kind = TURN if program.status == "resident" else RESUME if program.turns or program.pauses else NEWCOMER

    def wait(self, ticket: Ticket, now: float) -> None:
        """A turn has to wait."""
        program = ticket.program
        self.sort(ticket)
        self.queue.add(ticket, now)
        if program.status == "resident" and not program.running:
            self.backends[program.backend or ""].may_yield(*yields(program))
        program._mark_held(now)

    def requeued(self, ticket: Ticket, now: float) -> None:
        """A granted turn waits again."""
        program = ticket.program
        self.uncount(ticket)
        ticket.state, ticket.backend, ticket.granted_at, ticket._counted = "waiting", None, None, 0
        if program.status == "resident":
            home = self.backends[program.backend or ""]
            home.claim(program, private_tokens(home, program))
        self.wait(ticket, now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """A ticket is over: uncounts it, and the program is idle if it was its last."""
        program = ticket.program
        if ticket.state == "granted":
            self.uncount(ticket)
        else:
            self.queue.remove(ticket)
        ticket.state = "done"
        program._tickets.remove(ticket)
        program._mark_held(now)
        if ticket in self.granted:
            self.granted.remove(ticket)
        backend = self.backends.get(program.backend or "")
        if not program._tickets:
            program.phase, program.since = "acting", now
            self.idle[program.id] = program
            gone = self.program_ends.expect(program.turns, program.tool)
            idle = self.idle_times.expect(program.id, program.tool, gone)
            program.next_use = now + idle.median()
            if backend is not None:
                keep = self.settings.keep * backend.capacity / backend.prefill_rate
                program._displace_at = now + idle.hold_for(keep)
        if program.status == "resident" and backend is not None:
            backend.claim(program, private_tokens(backend, program))
            if not program.running:
                backend.may_yield(*yields(program))
            self.relieve(backend, now)

    def uncount(self, ticket: Ticket) -> None:
        """A granted turn runs no longer."""
        backend = ticket._on
        program = ticket.program
        program.running -= 1
        if not program.running and program.status == "resident":
            self.backends[program.backend or ""].rests(program)
        if backend is not None:
            backend.running -= 1
            if not ticket._started:
                backend.backlog = max(0, backend.backlog - ticket._missing)

    # --- programs ---

    def expire(self, now: float) -> None:
        """Forgets programs of which nothing was heard for too long, and the longest idle of too many."""
        limit = now - self.settings.idle_ttl_s
        while self.idle:
            program = next(iter(self.idle.values()))
            if program.since > limit and len(self.idle) <= self.settings.max_idle:
                break
            self.program_ends.learn(program.turns, program.tool, True)
            self.forget(program)
            self.ended.append(program)

    def forget(self, program: Program) -> None:
        """It is over."""
        backend = self.backends.get(program.backend or "")
        if program.status == "resident" and backend is not None:
            backend.drop(program)
        program.status = "ended"
        del self.programs[program.id]
        self.idle.pop(program.id, None)
        self.idle_times.forget(program.id)
        self.turn_tokens.forget(program.id)

    def pause(self, program: Program, backend: BackendState, now: float) -> None:
        """A resident program counts no longer; turns of it that wait do so for room."""
        backend.drop(program)
        program.status = "paused"
        program.pauses += 1
        self.pauses += 1
        self.paused.append(Paused(program, backend.name))
        for ticket in program._tickets:
            if ticket.state == "waiting":
                self.queue.remove(ticket)
                self.wait(ticket, now)

    def resized(self, backend: BackendState, capacity: int, block: int, now: float) -> None:
        """It holds so many tokens now, in blocks of so many: what counts there is counted anew."""
        backend.capacity = capacity // block * block
        if block != backend.block:
            backend.cut(block)
            for program in backend.residents.values():
                backend.claim(program, private_tokens(backend, program))
        self.relieve(backend, now)

    def relieve(self, backend: BackendState, now: float) -> None:
        """What counts has outgrown the capacity: pauses programs between turns until it fits, as far as there are
        any."""
        if backend.used <= backend.capacity or len(backend.residents) == 1:
            return
        for program in idle_victims(backend, now, self.settings):
            if backend.used <= backend.capacity:
                return
            self.pause(program, backend, now)

    def grant(self, ticket: Ticket, backend: BackendState, now: float) -> None:
        """The turn runs; its program is resident there from now on."""
        program = ticket.program
        ticket.warm_tokens = backend.warm(program, ticket.expected_tokens)
        ticket._missing = ticket.expected_tokens - ticket.warm_tokens
        ticket._counted = growth(program, ticket)
        ticket.state, ticket.backend, ticket._on = "granted", backend.name, backend
        ticket.granted_at, ticket._started = now, False
        if program.status != "resident":
            program.admitted_at = now
        backend.claim(program, private_tokens(backend, program))
        backend.running += 1
        program.running += 1
        backend.begins(program)
        for other in program._tickets:
            if other.state == "waiting" and other._kind != TURN:
                self.queue.remove(other)
                self.wait(other, now)
        program._mark_held(now)
        backend.backlog += ticket._missing
        self.grants += 1


_NOTHING = Changes()
