"""The model's choice of who runs next: over the pools of a domain, by level, with loans of a lane to nested calls."""

from __future__ import annotations

from tests.core.model_admission import Admission
from tests.core.model_order import Order
from tests.core.model_queue import SCAN, Ticket


class Dispatch(Order, Admission):
    # --- choosing ---

    def dispatch(self, domain: int, steps: int = 10_000) -> bool:
        """Whether there is more to do after so many steps."""
        while any(self.waiting(p) for p in self.domain(domain)):
            if not steps:
                return True
            if not self.step(domain):
                return False
            steps -= 1
        return False

    def step(self, domain: int) -> bool:
        """One grant (or one ticket that steps aside): the pool with the most important head first, then the others."""
        ready = []
        for p in self.domain(domain):
            free = self.lane_free(p)
            if not self.waiting(p) or not (free or self.pools[p].lenders):
                continue
            closed = self.account_closed(p)
            if closed:
                self.earliest(closed)
                continue
            self.lift(p)
            self.unpark(p)
            if self.serve_a_child(p):
                return True
            if free:
                ready.append(p)
        heads = []
        for p in ready:
            level = next((i for i, x in enumerate(self.pools[p].levels) if x.waiting()), None)
            if level is not None:
                walk = self.pools[p].levels[level].walk()
                heads.append((level, self.head_arrival(walk[0]), p))
        return any(self.serve_pool(p, level) for level, _, p in sorted(heads))

    def serve_pool(self, p: int, level: int) -> bool:
        """Strict levels; behind a head that lacks rate smaller ones may go, for a while, and behind one that waits for
        what leases hold the calls that leases wait for."""
        state, head, nested_alone = self.pools[p], None, False
        scopes = sum(s.pool == p for s in self.scopes[: self.named_scopes])
        for x in state.levels[level:]:
            for t in x.walk():
                if nested_alone and not t.nested:
                    continue
                closed = self.scopes[t.scope].open_at(self.now)
                if closed:
                    if scopes > 1:
                        self.park(t)
                        return True
                    self.earliest(closed)
                    return False
                lacking = self.lacking(t)
                if lacking is None:
                    if head:
                        head.passes += 1
                    self.grant(t, queued=True, in_turn=head is None, loan=False)
                    return True
                if head:
                    continue
                head = t
                self.earliest(self.due(t))
                if t.blocked is None:
                    t.blocked = max(1, self.now)
                patient = self.now - t.blocked < round(self.config.backfill_s * 1e6)
                waits_for_many = self.takes(p, lacking) > 1 and self.config.limits[lacking].shape == "gauge"
                if t.passes >= self.config.backfill_passes or not patient or waits_for_many:
                    self.save_up(t)
                    if not self.lacks_gauge(t):
                        return False
                    nested_alone = True
                if self.config.limits[lacking].unit == "requests" and self.config.limits[lacking].shape != "gauge":
                    return False  # everybody needs one
            if head and not nested_alone and len(x.walk()) < x.waiting():
                return False  # one that was not looked at may fit: levels are strict
        return False

    def serve_a_child(self, p: int) -> bool:
        """A nested call rides on the lane of the lease that waits for it, one at a time."""
        for lender in self.pools[p].lenders[:SCAN]:
            t = lender.waiters[0]
            if lender.loan or t.parked or self.scopes[t.scope].open_at(self.now):
                continue
            if self.lacking(t) is None:
                self.grant(t, queued=True, in_turn=False, loan=True)
                return True
            self.earliest(self.due(t))
        return False

    def grant(self, t: Ticket, *, queued: bool, in_turn: bool, loan: bool) -> None:
        spec = self.config.pools[t.pool]
        if queued:
            self.leave_waiters(t)
            t.cost, t.charged = self.cost(t, t.tokens, self.pools[t.pool].ewma), True
            own = 0 if t.policy in ("fifo", "priority", "custom") else t.cost * 1024 // self.agents[t.agent].weight
            tenant = self.agents[t.agent].tenant
            whole = t.cost * 1024 // self.tenants[tenant] if t.policy in ("mlfq", "drf") else 0
            self.unlist(t)
            if t.level == 2 and self.pools[t.pool].aging:
                self.pools[t.pool].background_served = self.now
            self.pools[t.pool].levels[t.level].serve(t, *self.keys(t), own, whole, in_turn)
        for i in spec.limits:
            if need := self.need(t, i):
                t.stamps[i] = self.limits[i].take(need, self.now)
            if self.savers[i] is t:
                self.savers[i] = None
        if loan:
            assert t.lender and t.lender.loan is None
            t.on_loan, t.lender.loan = True, t
        else:
            self.pools[t.pool].used += 1
        self.move(t, "RUNNING")
        t.granted = self.now
        for s in [t.scope] + ([spec.account_scope] if spec.account_scope >= 0 else []):
            self.scopes[s].started(self.now)
        self.note("grant", t, self.now - t.submitted)
        if queued and t.owner == self.by:
            self.out.granted.append(t)
        elif queued:
            t.mailed = True
            self.mail[t.owner].append(t)
            if t.owner not in self.out.woken:
                self.out.woken.append(t.owner)

    # --- loans ---

    def lender_of(self, t: Ticket) -> Ticket | None:
        return t.lender if t.lender is not None and t.lender.state == "RUNNING" else None

    def join_waiters(self, t: Ticket) -> None:
        if lender := self.lender_of(t):
            lender.waiters.append(t)
            if len(lender.waiters) == 1:
                self.pools[t.pool].lenders.insert(0, lender)

    def leave_waiters(self, t: Ticket) -> None:
        lender = self.lender_of(t)
        if lender and t in lender.waiters:
            lender.waiters.remove(t)
            if not lender.waiters:
                self.pools[t.pool].lenders.remove(lender)

    def give_lane_back(self, t: Ticket) -> None:
        """To its lender, on to the child that rides on it, or free."""
        state, rider = self.pools[t.pool], t.loan
        if t.waiters:
            state.lenders.remove(t)
            t.waiters = []
        lender = self.lender_of(t) if t.on_loan else None
        if rider and lender:
            rider.lender = lender
        elif rider:
            rider.on_loan = False
        if lender:
            lender.loan = rider
        elif not rider:
            state.used -= 1
        t.loan = None

    def child_ended(self, t: Ticket) -> None:
        if t.parent and t.parent.state != "CLAIMED":
            t.parent.kids -= 1
            t.parent.beat = max(t.parent.beat, self.now)  # it was waiting for this child until now
