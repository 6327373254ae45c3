"""Which programs keep their context on which backend, and whose turn runs?

A pure state machine: time comes in, decisions come out; no clock, no I/O, no tasks. Live traffic and the simulator
drive the same one. Here is what can be asked of it; `ledger.py` counts, `dispatch.py` decides.

Theory of operation
-------------------
1. A backend's cache is bounded. A program that is *resident* counts with its whole context, running or between turns; a
   prefix that several share counts once; both in whole blocks where the cache consists of such. The sum stays within
   the capacity, so the engine has no reason to throw away what will be used again: bounding the working set is where
   the gain is ("ThunderAgent", arXiv 2602.13692).
2. A turn of a resident program runs at once. Needs it more room, programs between two turns are *paused* for it: who
   has been paused least, of the lowest class, whose next turn is farthest away, who was held back least. A running turn
   is never interrupted. If all others run, the turn waits for one of them to end.
3. Paused programs and newcomers wait in one queue for all backends (`waiting.py`), by how long they were held back for
   each second of their own, so that large and small ones are slowed down alike. They take room that is free below a
   mark; room of a program whose next turn is farther away than it is worth keeping (`predict.Idle.hold_for`: cost of
   holding against cost of computing again); room of one that was held back far less; and, once they have waited for
   longer than `patience_s`, room of any that is between turns and has had its time. Whoever cannot be placed and was
   passed often enough gets a backend reserved.
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
from dataclasses import dataclass

from agentrm.errors import QueueFull, RequestTooLarge
from agentrm.identity import Priority
from agentrm.programs.dispatch import Dispatcher
from agentrm.programs.ledger import Ledger
from agentrm.programs.program import Changes, Prefix, Program, Ticket
from agentrm.programs.residency import BackendState
from agentrm.programs.settings import ProgramSettings

__all__ = ["ProgramScheduler", "ProgramStatistics"]

_RECHECK_S = 1.0


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
        self._ledger = Ledger(self.settings)
        self._dispatcher = Dispatcher(self._ledger)
        self._serve = self._dispatcher.serve
        self.programs = self._ledger.programs
        """All that have not ended, by id."""
        self.backends = self._ledger.backends
        self._numbers = itertools.count(1)
        self._refused = 0

    # --- backends ---

    def set_backend(
        self,
        name: str,
        capacity_tokens: int,
        now: float,
        *,
        prefill_tokens_per_s: float = 8000.0,
        slots: int | None = None,
        block_tokens: int = 1,
    ) -> None:
        """Adds a backend, or says anew what it holds (an engine that was restarted may have another capacity).

        `capacity_tokens`: its KV cache. `prefill_tokens_per_s`: how fast it computes prompts when it does nothing else.
        `slots`: turns it can run at once, None: as many as fit. `block_tokens`: its cache consists of blocks of so many
        tokens, which belong to one program as a whole. Raises ValueError for values that cannot be.
        """
        if capacity_tokens < 1 or not prefill_tokens_per_s > 0 or (slots is not None and slots < 1):
            raise ValueError(
                f"backend {name!r}: capacity_tokens={capacity_tokens}, prefill_tokens_per_s={prefill_tokens_per_s} and "
                f"slots={slots} must be above 0"
            )
        if not 1 <= block_tokens <= capacity_tokens:
            raise ValueError(f"backend {name!r}: block_tokens={block_tokens} must be from 1 to capacity_tokens")
        backend = self.backends.get(name)
        if backend is None:
            self.backends[name] = BackendState(name, capacity_tokens, prefill_tokens_per_s, slots, block_tokens)
        else:
            backend.prefill_rate, backend.slots = prefill_tokens_per_s, slots
            self._ledger.resized(backend, capacity_tokens, block_tokens, now)
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
            self._ledger.pause(program, backend, now)
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
        expected = self._ledger.corrected(program, tokens)
        output = self._ledger.turn_tokens.expect(program_id)
        if max_output_tokens is not None:
            output = min(output, max_output_tokens)
        self._refuse(program, known, min(expected, tokens))
        program.priority, program._estimated = priority, tokens
        ticket = Ticket(program, next(self._numbers), expected, output, now)
        self._ledger.arrived(ticket, now)
        self._dispatcher.arrived(ticket, now)
        return ticket

    def progress(self, ticket: Ticket, now: float, output_tokens: int = 0) -> None:
        """The turn answers and has written `output_tokens` so far. Optional; makes placement and counts more exact."""
        backend = self.backends.get(ticket.backend or "")
        if ticket.state != "granted" or backend is None:
            return
        self._ledger.progressed(ticket, backend, output_tokens)
        self._ledger.relieve(backend, now)

    def settle(
        self, ticket: Ticket, now: float, *, input_tokens: int, output_tokens: int, tool: str | None = None
    ) -> None:
        """The turn is over; exact usage replaces the estimates. `tool`: the tool that the answer asks for, if any."""
        if ticket.state != "granted":
            return
        self._ledger.settled(ticket, input_tokens, output_tokens, tool)
        self._ledger.leave(ticket, now)
        self._ledger.expire(now)
        self._serve(now)

    def cancel(self, ticket: Ticket, now: float) -> None:
        """The turn is given up, waiting or running; what it counted is cleared. A program without any other turn ends
        if none was ever settled."""
        if ticket.state == "done":
            return
        self._ledger.leave(ticket, now)
        program = ticket.program
        if not program.turns and not program._tickets:
            self._ledger.forget(program)
        self._ledger.expire(now)
        self._serve(now)

    def requeue(self, ticket: Ticket, now: float) -> None:
        """A granted turn whose backend failed before it answered waits again, in its old place, for any backend."""
        if ticket.state != "granted":
            return
        self._ledger.requeued(ticket, now)
        self._serve(now)

    def end(self, program_id: str, now: float) -> tuple[Ticket, ...]:
        """The program is over: its turns are cancelled, nothing of it counts any more. Returns those turns; none for
        unknown ids."""
        program = self.programs.get(program_id)
        if program is None:
            return ()
        tickets = tuple(program._tickets)
        for ticket in tickets:
            self._ledger.leave(ticket, now)
        self._ledger.forget(program)
        self._serve(now)
        return tickets

    # --- results ---

    def take(self) -> Changes:
        """What calls since the last `take` brought about besides their own result."""
        return self._ledger.take()

    def tick(self, now: float) -> None:
        """Time has passed: forgets programs of which nothing is heard, lets in who has become due."""
        self._ledger.expire(now)
        self._serve(now)

    def next_due(self, now: float) -> float | None:
        """When `tick` is needed next, in the terms of `now`; None: not before something else happens."""
        due = math.inf
        if self._ledger.idle:
            due = next(iter(self._ledger.idle.values())).since + self.settings.idle_ttl_s
        if len(self._ledger.queue) and any(b.up and b.residents for b in self.backends.values()):
            due = min(due, now + _RECHECK_S, *(b.look_at for b in self.backends.values() if b.up))
        return None if due == math.inf else due

    def statistics(self) -> ProgramStatistics:
        resident = sum(len(b.residents) for b in self.backends.values())
        return ProgramStatistics(
            programs=len(self.programs),
            resident=resident,
            paused=sum(p.status == "paused" for p in self.programs.values()),
            waiting=len(self._ledger.queue),
            running=sum(p.running for p in self.programs.values()),
            used_tokens={b.name: b.used for b in self.backends.values()},
            capacity_tokens={b.name: b.capacity for b in self.backends.values()},
            granted=self._ledger.grants,
            pauses=self._ledger.pauses,
            refused=self._refused,
        )

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
        if len(self._ledger.queue) >= allowed:
            self._refused += 1
            waiting = len(self._ledger.queue)
            wait = min(600.0, max(1.0, self._dispatcher.interval_s * waiting))
            raise QueueFull(
                f"{waiting} turns wait for room already (programs.max_waiting); come back in {wait:.0f} s",
                agent=program.id,
                retry_after=wait,
                is_retryable=True,
            )
