"""Which of the turns that wait runs next, and on which backend? Decides; what follows is counted by the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentrm.identity import PRIORITIES
from agentrm.programs.ledger import Ledger
from agentrm.programs.program import Ticket
from agentrm.programs.residency import BackendState
from agentrm.programs.room import enough, lacks, victims
from agentrm.programs.waiting import NEWCOMER, TURN

__all__ = ["Dispatcher"]

_WINDOW = 16
_LARGE = 1 / 16


class Dispatcher:
    """Serves the queue of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._settings = ledger, ledger.settings
        self._last_grant: float | None = None
        self.interval_s = 1.0
        """Seconds between grants of turns that waited, smoothed."""

    def arrived(self, ticket: Ticket, now: float) -> None:
        """A turn that was just asked for is granted at once or waits."""
        program, ledger = ticket.program, self._ledger
        backend = ledger.backends.get(program.backend or "")
        if program.status == "resident" and backend is not None and self._fits_resident(backend, ticket, now):
            ledger.grant(ticket, backend, now)
            self.serve(now)
            return
        ledger.sort(ticket)
        if ticket._kind != TURN and not len(ledger.queue):  # nobody whom it might pass
            backend = self._place(ticket, now, set())
            if backend is not None:
                ledger.queue.served(ticket)
                ledger.grant(ticket, backend, now)
                return
        ledger.wait(ticket, now)
        self.serve(now)
        if ticket.state == "granted":
            ledger.granted.remove(ticket)

    def serve(self, now: float) -> None:
        """Grants whatever can be granted now."""
        for each in self._ledger.backends.values():
            each.serving()
        while len(self._ledger.queue):
            window = list(itertools.islice(self._ledger.queue.first(now), _WINDOW))
            blocked: set[str] = set()
            granted: Ticket | None = None
            for ticket in self._by_warmth(window, now):
                if ticket._kind != TURN and all(not b.up or b.name in blocked for b in self._ledger.backends.values()):
                    continue
                backend = self._place(ticket, now, blocked)
                if backend is not None:
                    self._ledger.queue.remove(ticket)
                    self._ledger.queue.served(ticket)
                    granted = ticket
                    self._ledger.grant(ticket, backend, now)
                    self._ledger.granted.append(ticket)
                    self._pace(now)
                    break
                if self._owed(ticket, now):
                    self._reserve(ticket, blocked)
            if granted is None:
                return
            for ticket in window[: window.index(granted)]:
                ticket.passes += 1

    def _by_warmth(self, window: list[Ticket], now: float) -> Iterator[Ticket]:
        """Of newcomers of a class those with most in the cache first; who was passed catches up. (Paused programs go by
        what they were held back: the warmest would be the largest.)"""
        for (_, kind, _), group in itertools.groupby(window, lambda t: (t.priority, t._kind, self._owed(t, now))):
            if kind == NEWCOMER:
                yield from sorted(group, key=lambda t: -self._warmest(t) - self._settings.ageing_tokens * t.passes)
            else:
                yield from group

    def _warmest(self, ticket: Ticket) -> int:
        if ticket.program.prefix is None:
            return 0
        up = (b for b in self._ledger.backends.values() if b.up)
        return max((b.warm(ticket.program, ticket.expected_tokens) for b in up), default=0)

    def _owed(self, ticket: Ticket, now: float) -> bool:
        """Whether room is kept for it: it gathers slowly for a large one and stands empty meanwhile, so whoever needs
        more than `_LARGE` of a backend may be passed oftener, in proportion."""
        late = now - ticket.arrived > self._settings.patience_s
        if late or ticket._kind == TURN:
            return True
        most = max((b.capacity for b in self._ledger.backends.values() if b.up), default=1)
        return ticket.passes >= self._settings.passes * max(1.0, ticket.expected_tokens / (_LARGE * most))

    def _reserve(self, ticket: Ticket, blocked: set[str]) -> None:
        """Nobody behind it may take new room on the backend where it will fit soonest."""
        free = [b for b in self._ledger.backends.values() if b.up and b.name not in blocked]
        home = self._ledger.backends.get(ticket.program.backend or "")
        if ticket._kind == TURN and home is not None:
            blocked.add(home.name)
        elif free:
            blocked.add(max(free, key=lambda b: b.capacity - b.busy()).name)

    def _pace(self, now: float) -> None:
        if self._last_grant is not None:
            self.interval_s += 0.1 * (now - self._last_grant - self.interval_s)
        self._last_grant = now

    def _place(self, ticket: Ticket, now: float, blocked: set[str]) -> BackendState | None:
        """The backend with the smallest predicted time on which there is room, having made it."""
        program = ticket.program
        home = self._ledger.backends.get(program.backend or "")
        if program.status == "resident" and home is not None:
            if self._fits_resident(home, ticket, now):
                return home
            if program.running:
                return None
            for backend in self._ledger.backends.values():  # its own is full of turns that run: rather move than wait
                if backend.up and backend.name not in blocked and lacks(backend, ticket, self._settings.admit) <= 0:
                    self._ledger.pause(program, home, now)
                    return backend
            return None
        choice: list[tuple[float, str, BackendState]] = []
        for backend in self._ledger.backends.values():
            if backend.up and backend.name not in blocked:
                choice.append((self._cost(ticket, backend), backend.name, backend))
        for _, _, backend in sorted(choice, key=lambda c: c[:2]):
            if self._make_room(backend, ticket, now):
                return backend
        return None

    def _cost(self, ticket: Ticket, backend: BackendState) -> float:
        """Predicted seconds of a turn there, in comparison to others."""
        missing = ticket.expected_tokens - backend.warm(ticket.program, ticket.expected_tokens)
        full = self._settings.balance * backend.used  # a full cache soon costs somebody a prefill
        return (missing + backend.backlog + full) / backend.prefill_rate

    def _fits_resident(self, backend: BackendState, ticket: Ticket, now: float) -> bool:
        if not backend.up or (backend.slots is not None and backend.running >= backend.slots):
            return False
        return self._displaced(backend, ticket, lacks(backend, ticket, 1.0), now)

    def _make_room(self, backend: BackendState, ticket: Ticket, now: float) -> bool:
        """Whether a paused program or a newcomer gets onto the backend."""
        if backend.slots is not None and backend.running >= backend.slots:
            return False
        return self._displaced(backend, ticket, lacks(backend, ticket, self._settings.admit), now)

    def _displaced(self, backend: BackendState, ticket: Ticket, missing: int, now: float) -> bool:
        """Pauses as many as are needed, and nobody if they don't suffice."""
        if missing <= 0:
            return True
        hurried = ticket._kind == TURN and ticket.program.status == "resident"
        rank = PRIORITIES.index(ticket.priority)
        if not hurried and backend.in_vain(missing, rank, now):
            return False
        candidates = victims(backend, ticket, now, self._settings)
        if candidates is None:
            return False
        chosen = enough(backend, missing, candidates)
        alone = len(candidates) == len(backend.residents) - (ticket.program.id in backend.residents)
        if chosen is None and alone and not ticket.program.running:
            chosen = candidates  # when all others make way it fits, however large
        if chosen is None and not hurried:
            backend.looked_in_vain(missing, rank, now)
        for program in chosen or ():
            self._ledger.pause(program, backend, now)
        return chosen is not None
