"""Who goes next? The one queue of all turns that wait for room, on whichever backend.

Order: class (interactive, subagent, background). Inside a class the next turns of resident programs, by arrival; then
whoever has waited for longer than `patience_s`, by arrival; then paused programs and newcomers. Among those the tenant
goes first that was given least in relation to its weight; of a tenant the program that was held back longest for each
second of its own (`Program.held_share`), so that all are slowed down alike ("highest response ratio next"). A paused
program goes before newcomers unless they were held back by more than `_AHEAD` of that. Background work that has waited
for `ageing_s` goes with the subagents, never with interactive work.

A tenant that was idle comes in level with the others: idling earns nothing (start-time fair queueing).
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping

from agentrm.identity import PRIORITIES
from agentrm.programs.program import Ticket
from agentrm.programs.settings import ProgramSettings

__all__ = ["NEWCOMER", "RESUME", "TURN", "WaitingQueue"]

TURN, RESUME, NEWCOMER = range(3)
"""What waits: the next turn of a resident program, of a paused one, or the first turn of a program."""
_RANK = {name: rank for rank, name in enumerate(PRIORITIES)}
_AHEAD = 0.2
_RESORT_S = 1e-3  # the order by shares drifts slowly: with n waiting it is made anew at most every n times that
_Line = dict[int, Ticket]  # by number, which is the order of arrival


class WaitingQueue:
    """The queue. A tenant of weight 2 is given twice as much as one of weight 1 (the default) while both wait."""

    def __init__(self, settings: ProgramSettings) -> None:
        self._settings = settings
        self._turns: list[_Line] = [{} for _ in PRIORITIES]
        self._others: list[dict[str, _Shares]] = [{} for _ in PRIORITIES]  # by tenant
        self._by_age: list[_Line] = [{} for _ in PRIORITIES]
        self._waiting_of: dict[str, int] = {}
        self._given: dict[str, float] = {}
        self._level, self._room = 0.0, 64

    def __len__(self) -> int:
        return sum(map(len, self._by_age))

    def add(self, ticket: Ticket, now: float) -> None:
        """Takes a ticket in; its place follows its number, so that one which comes back keeps its turn."""
        tenant, rank = ticket.program.tenant, _RANK[ticket.priority]
        if tenant not in self._waiting_of:
            self._given[tenant] = max(self._given.get(tenant, 0.0), self._level)
        self._waiting_of[tenant] = self._waiting_of.get(tenant, 0) + 1
        if ticket._kind == TURN:
            _insert(self._turns[rank], ticket)
        else:
            line = self._others[rank].get(tenant)
            if line is None:
                line = self._others[rank][tenant] = _Shares(self._settings.credit_s)
            line.add(ticket, now)
        _insert(self._by_age[rank], ticket)

    def remove(self, ticket: Ticket) -> None:
        """Takes it out, served or not."""
        tenant, rank = ticket.program.tenant, _RANK[ticket.priority]
        del self._by_age[rank][ticket.seq]
        if ticket._kind == TURN:
            del self._turns[rank][ticket.seq]
        else:
            line = self._others[rank][tenant]
            line.remove(ticket)
            if not len(line):
                del self._others[rank][tenant]
        self._waiting_of[tenant] -= 1
        if not self._waiting_of[tenant]:
            del self._waiting_of[tenant]
            self._trim()

    def served(self, ticket: Ticket) -> None:
        """Charges the tenant for a turn that was granted, whether or not it had to wait."""
        before = max(self._given.get(ticket.program.tenant, 0.0), self._level)
        self._level = before
        self._given[ticket.program.tenant] = before + self._price(ticket)
        self._trim()

    def _trim(self) -> None:
        if len(self._given) > self._room:  # who is level with the rest need not be remembered
            self._given = {t: v for t, v in self._given.items() if v > self._level or t in self._waiting_of}
            self._room = 2 * len(self._given) + 64

    def first(self, now: float) -> Iterator[Ticket]:
        """The tickets in the order of service. The queue may not be changed while it is walked."""
        seen: set[int] = set()
        for rank in range(len(PRIORITIES)):
            walks: list[Iterable[Ticket]] = [self._turns[rank].values()]
            if rank == 1:
                walks.append(self._older(2, now - self._settings.ageing_s))
            walks += [self._older(rank, now - self._settings.patience_s), self._fair(self._others[rank], now)]
            for walk in walks:
                for ticket in walk:
                    if ticket.seq not in seen:
                        seen.add(ticket.seq)
                        yield ticket

    def _older(self, rank: int, than: float) -> Iterator[Ticket]:
        for ticket in self._by_age[rank].values():
            if ticket.arrived >= than:
                return
            yield ticket

    def _fair(self, lines: Mapping[str, _Shares], now: float) -> Iterator[Ticket]:
        heap = []
        for tenant, line in lines.items():
            rest = line.first(now)
            head = next(rest)
            heap.append((self._given[tenant], head.seq, head, rest))
        heapq.heapify(heap)
        while heap:
            given, _, ticket, rest = heap[0]
            yield ticket
            follower = next(rest, None)
            if follower is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (given + self._price(ticket), follower.seq, follower, rest))

    def _price(self, ticket: Ticket) -> float:
        return ticket.expected_tokens / self._settings.weights.get(ticket.program.tenant, 1.0)


class _Shares:
    """One tenant's paused programs and newcomers, who was held back most first."""

    def __init__(self, credit_s: float) -> None:
        self._credit_s = credit_s
        self._line: _Line = {}
        self._order: list[Ticket] = []
        self._made = -math.inf

    def __len__(self) -> int:
        return len(self._line)

    def add(self, ticket: Ticket, now: float) -> None:
        self._line[ticket.seq] = ticket
        bisect.insort(self._order, ticket, key=lambda t: self._key(t, now))

    def remove(self, ticket: Ticket) -> None:
        del self._line[ticket.seq]
        self._order.remove(ticket)

    def first(self, now: float) -> Iterator[Ticket]:
        if now - self._made > _RESORT_S * len(self._order):
            self._order.sort(key=lambda t: self._key(t, now))
            self._made = now
        return iter(self._order)

    def _key(self, ticket: Ticket, now: float) -> tuple[float, int]:
        ahead = _AHEAD if ticket._kind == RESUME else 0.0
        return -ahead - ticket.program.held_share(now, self._credit_s), ticket.seq


def _insert(line: _Line, ticket: Ticket) -> None:
    late = bool(line) and next(reversed(line)) > ticket.seq
    line[ticket.seq] = ticket
    if late:
        ordered = sorted(line.items())
        line.clear()
        line.update(ordered)
