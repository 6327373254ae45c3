"""Who goes next? The one queue of all turns that wait for room, on whichever backend.

Order: class (interactive, subagent, background). Inside a class the next turns of resident programs, by arrival; then
whoever has waited for longer than `patience_s`, by arrival; then paused programs; then newcomers. Among those two the
tenant goes first that was given least in relation to its weight, then arrival. Background work that has waited for
`ageing_s` goes with the subagents, never with interactive work.

A tenant that was idle comes in level with the others: idling earns nothing (start-time fair queueing).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from agentrm.identity import PRIORITIES
from agentrm.programs.program import Ticket

__all__ = ["NEWCOMER", "RESUME", "TURN", "WaitingQueue"]

TURN, RESUME, NEWCOMER = range(3)
"""What waits: the next turn of a resident program, of a paused one, or the first turn of a program."""
_RANK = {name: rank for rank, name in enumerate(PRIORITIES)}
_Line = dict[int, Ticket]  # by number, which is the order of arrival


class WaitingQueue:
    """The queue. `weights` by tenant (default 1): a tenant of weight 2 is given twice as much while both wait."""

    def __init__(self, weights: Mapping[str, float] | None = None, *, patience_s: float, ageing_s: float) -> None:
        self._weights = dict(weights or {})
        self._patience_s, self._ageing_s = patience_s, ageing_s
        # of each class: of each kind, one line per tenant; and everybody by age
        self._lanes: list[list[dict[str, _Line]]] = [[{}, {}, {}] for _ in PRIORITIES]
        self._by_age: list[_Line] = [{} for _ in PRIORITIES]
        self._waiting_of: dict[str, int] = {}
        self._given: dict[str, float] = {}
        self._level = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._by_age))

    def add(self, ticket: Ticket) -> None:
        """Takes a ticket in; its place follows its number, so that one which comes back keeps its turn."""
        tenant, rank = ticket.program.tenant, _RANK[ticket.priority]
        if tenant not in self._waiting_of:
            self._given[tenant] = max(self._given.get(tenant, 0.0), self._level)
        self._waiting_of[tenant] = self._waiting_of.get(tenant, 0) + 1
        _insert(self._lanes[rank][ticket._kind].setdefault(tenant, {}), ticket)
        _insert(self._by_age[rank], ticket)

    def remove(self, ticket: Ticket) -> None:
        """Takes it out, served or not."""
        tenant, rank = ticket.program.tenant, _RANK[ticket.priority]
        lines = self._lanes[rank][ticket._kind]
        del lines[tenant][ticket.seq], self._by_age[rank][ticket.seq]
        if not lines[tenant]:
            del lines[tenant]
        self._waiting_of[tenant] -= 1
        if not self._waiting_of[tenant]:
            del self._waiting_of[tenant]
            if len(self._given) > 2 * len(self._waiting_of) + 64:  # who is level with the rest need not be remembered
                self._given = {t: v for t, v in self._given.items() if v > self._level or t in self._waiting_of}

    def served(self, ticket: Ticket) -> None:
        """Charges the tenant for a turn that was granted after it had waited."""
        before = max(self._given.get(ticket.program.tenant, 0.0), self._level)
        self._level = before
        self._given[ticket.program.tenant] = before + self._price(ticket)

    def first(self, now: float) -> Iterator[Ticket]:
        """The tickets in the order of service. The queue may not be changed while it is walked."""
        seen: set[int] = set()
        for rank, (turns, resumes, newcomers) in enumerate(self._lanes):
            walks: list[Iterable[Ticket]] = [heapq.merge(*(t.values() for t in turns.values()), key=lambda t: t.seq)]
            if rank == 1:
                walks.append(self._older(2, now - self._ageing_s))
            walks += [self._older(rank, now - self._patience_s), self._fair(resumes), self._fair(newcomers)]
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

    def _fair(self, lines: Mapping[str, _Line]) -> Iterator[Ticket]:
        heap = []
        for tenant, line in lines.items():
            rest = iter(line.values())
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
        return ticket.expected_tokens / self._weights.get(ticket.program.tenant, 1.0)


def _insert(line: _Line, ticket: Ticket) -> None:
    late = bool(line) and next(reversed(line)) > ticket.seq
    line[ticket.seq] = ticket
    if late:
        ordered = sorted(line.items())
        line.clear()
        line.update(ordered)
