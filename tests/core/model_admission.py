"""The model's limits at an admission: what a ticket lacks, when it will be there, for whom a limit is saved up."""

from __future__ import annotations

from tests.core.model_limits import Rolling
from tests.core.model_queue import Ticket
from tests.core.model_state import State


class Admission(State):
    def lacking(self, t: Ticket) -> int | None:
        """The first limit that has no room for the ticket; None: all of them have."""
        for i in self.config.pools[t.pool].limits:
            need = self.need(t, i)
            if need and (self.saved_for_other(i, t) or not self.limits[i].room(need, self.now)):
                return i
        return None

    def due(self, t: Ticket) -> int | None:
        needs = [(self.limits[i], self.need(t, i)) for i in self.config.pools[t.pool].limits]
        at = [x.due(need, self.now) for x, need in needs if need and not x.room(need, self.now)]
        return None if not at or None in at else max(at)  # type: ignore[type-var]

    def saved_for_other(self, i: int, t: Ticket) -> bool:
        """For one of a more important level or that came earlier: an order, so nobody waits in a circle. What leases
        hold is not saved from a call that a lease waits for."""
        s = None if t.nested and self.config.limits[i].shape == "gauge" else self.saver(i)
        return s is not None and s is not t and (s.level, s.arrival) < (t.level, t.arrival)

    def saver(self, i: int) -> Ticket | None:
        """Whom the limit is saved up for; nobody while that ticket could not use what is saved."""
        s = self.savers[i]
        if s is None or s.state != "WAITING" or s.parked or not self.lane_free(s.pool):
            return None
        if self.config.limits[i].shape != "gauge" and self.lacks_gauge(s):
            return None
        first = next(x.walk()[0] for x in self.pools[s.pool].levels if x.waiting())
        closed = self.account_closed(s.pool) or self.scopes[s.scope].open_at(self.now)
        return s if s is first and not closed else None

    def save_up(self, t: Ticket) -> None:
        for i in self.config.pools[t.pool].limits:
            if self.need(t, i) and not self.saved_for_other(i, t):
                self.savers[i] = t

    def lacks_gauge(self, t: Ticket) -> bool:
        """Whether it waits for what leases hold, or will hold once another has got what is saved for it."""
        gauges = (n for n in self.config.pools[t.pool].limits if self.config.limits[n].shape == "gauge")
        needs = [(n, need) for n in gauges if (need := self.need(t, n))]
        return any(self.saved_for_other(n, t) or not self.limits[n].room(need, self.now) for n, need in needs)

    def correct_limit(self, i: int, t: Ticket, tokens: int, refund: bool) -> None:
        limit, reserved = self.limits[i], self.need(t, i)
        fixed = self.takes(t.pool, i) or self.config.limits[i].unit != "tokens"
        real = 0 if refund else reserved if fixed else tokens
        if not reserved and real and isinstance(limit, Rolling):
            limit.take(real, self.now)
        elif reserved or real:
            limit.correct(t.stamps.get(i), reserved, real, self.now)
