"""How is room made on a backend? What a turn lacks there, and whom it may displace: pure functions over the state."""

from __future__ import annotations

import math

from agentrm.identity import PRIORITIES
from agentrm.programs.program import Program, Ticket
from agentrm.programs.residency import BackendState
from agentrm.programs.settings import ProgramSettings
from agentrm.programs.waiting import TURN

__all__ = ["enough", "growth", "idle_victims", "lacks", "private_tokens", "victims", "yields"]

_RANK = {name: rank for rank, name in enumerate(PRIORITIES)}


def growth(program: Program, ticket: Ticket) -> int:
    """Tokens that the turn adds to what the program's context counts: the rest of its prompt, and its answer."""
    return max(0, ticket.expected_tokens - program.context_tokens) + ticket._output


def private_tokens(backend: BackendState, program: Program, ticket: Ticket | None = None) -> int:
    """What the program counts by itself there with its running turns, and with `ticket` if that is to run too: the
    blocks that its context fills, and for each turn those beyond."""
    more = [t._counted for t in program._tickets if t.state == "granted"]
    if ticket is not None:
        more.append(growth(program, ticket))
    context, shared = program.context_tokens, backend.shared_by(program)
    kept = max(shared, backend.full(context))
    return kept - shared + sum(max(0, backend.begun(context + one) - kept) for one in more)


def lacks(backend: BackendState, ticket: Ticket, mark: float) -> int:
    """Tokens that are missing for the turn below this share of the capacity; 0 or less: it fits. A program of which no
    turn runs fits where it is alone, however large: its size is an estimate until an engine has said no."""
    program, limit = ticket.program, int(mark * backend.capacity)
    here = program.status == "resident" and program.backend == backend.name
    own = backend.frees(program) if here else 0
    others, with_it = backend.used - own, own + backend.need(program, private_tokens(backend, program, ticket))
    return others + (with_it if program.running else min(with_it, limit)) - limit


def victims(backend: BackendState, ticket: Ticket, now: float, settings: ProgramSettings) -> list[Program] | None:
    """Whom the turn may displace, the first to go first; None: nobody, which was plain without a look at each.

    The next turn of a resident program: every one that is between turns, and those that wait behind it for room to
    grow. Paused programs and newcomers: those whose next turn is not worth waiting for, those of a lower class, those
    that were held back so much less that it is unfair (`unfair`), and after `patience_s` those that have been inside
    for `residence_s`.
    """
    found = []
    rank, turn = _RANK[ticket.priority], ticket._kind == TURN and ticket.program.status == "resident"
    late = now - ticket.arrived > settings.patience_s
    place = (rank, ticket.seq if turn or late else math.inf)
    fair = ticket.program.held_share(now, settings.credit_s) - settings.unfair
    if not (turn or late or fair > 0 or now >= backend.displaceable_at or backend.lowest > rank):
        return None
    backend.displaceable_at, backend.lowest = math.inf, 0
    for program in backend.pausable.values():
        backend.may_yield(*yields(program))
        if program is ticket.program:
            continue
        if program._tickets:
            if min((_RANK[t.priority], t.seq) for t in program._tickets) > place:
                found.append(program)
            continue
        if (
            turn
            or now >= program._displace_at
            or _RANK[program.priority] > rank
            or (fair > 0 and program.held_share(now, settings.credit_s) < fair)
            or (late and now - program.admitted_at >= settings.residence_s)
        ):
            found.append(program)
    return _in_order(found, now, settings)


def yields(program: Program) -> tuple[float, int]:
    """From when on a program of which no turn runs makes room for anybody, and the rank that makes way for others."""
    if program._tickets:
        return math.inf, max(_RANK[t.priority] for t in program._tickets)
    return program._displace_at, _RANK[program.priority]


def idle_victims(backend: BackendState, now: float, settings: ProgramSettings) -> list[Program]:
    """All that are between turns, the first to go first."""
    return _in_order([p for p in backend.pausable.values() if not p._tickets], now, settings)


def _in_order(programs: list[Program], now: float, settings: ProgramSettings) -> list[Program]:
    """Between turns before waiting, least paused, lowest class, farthest next turn (by powers of two), held back least
    so far."""

    def key(program: Program) -> tuple[float, ...]:
        far = 0.0 if program._tickets else max(program.next_use - now, now - program.since)
        return (
            bool(program._tickets), program.pauses, -_RANK[program.priority], -math.frexp(far)[1],
            program.held_share(now, settings.credit_s), -program.arrived,
        )  # fmt: skip

    return sorted(programs, key=key)


def enough(backend: BackendState, missing: int, candidates: list[Program]) -> list[Program] | None:
    """The first candidates that free what is missing, without those that turn out not to be needed; None: too few."""
    chosen: list[Program] = []
    for program in candidates:
        if missing <= 0:
            break
        chosen.append(program)
        missing -= backend.frees(program)
    if missing > 0:
        return None
    for program in list(chosen):
        if missing + backend.frees(program) <= 0:
            missing += backend.frees(program)
            chosen.remove(program)
    return chosen
