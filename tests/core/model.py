"""The kernel's semantics in plain Python: the readable specification that the C core is compared with.

Everything is a list or a sort; nothing is fast. Times are microseconds since the epoch inside and nanoseconds at the
border, as in the kernel. The calls stand here; `model_dispatch` says who runs next, `model_order` after whom one waits,
`model_admission` what one lacks, `model_state` what they all read. `test_model_agrees.py` runs both side by side.
"""

from __future__ import annotations

from tests.core.model_dispatch import Dispatch
from tests.core.model_limits import trunc
from tests.core.model_queue import Ticket
from tests.core.model_state import OK, Outcome

STALE, FULL, TOO_LARGE, QUEUE, STATE = -1, -2, -3, -7, -8
DONE, FAILED, REFUND = 0, 1, 2
RESUMED, TRY, AWAITED = 1, 2, 4
STEPS = 4  # of dispatch in the transaction that submits; the rest follow in transactions of their own


class Model(Dispatch):
    def submit(
        self, now_ns: int, pool: int, agent: int, klass: int, scope: int, tokens: int, *, flags: int = 0, by: int = 0,
        idle: int = 0, run: int = 0, parent: Ticket | None = None, key: int = 0, memory: int = 0, level: int = 0,
    ) -> Outcome:  # fmt: skip
        out = self.begin(now_ns, by)
        if len(self.live) >= self.config.tickets:
            out.code = FULL
            return out
        spec, policy = self.config.pools[pool], self.pools[pool].policy
        for i in spec.limits:
            need = self.takes(pool, i) or {"requests": 1, "tokens": tokens, "memory": memory}[self.config.limits[i].unit]
            gauge = self.config.limits[i].shape == "gauge"
            if need > self.limits[i].capacity and (gauge or not spec.oversize_debt):
                out.code = TOO_LARGE
                return out
        self.submits += 1
        entry = self.entry_level(agent, klass, policy, level)
        if policy == "mlfq" and flags & AWAITED:
            entry = klass
        t = Ticket(
            pool, klass, entry, agent, scope, by, tokens, memory,
            self.submits, self.now, policy, key, idle, run,
        )  # fmt: skip
        if parent is not None and parent.state == "RUNNING":
            t.parent = t.lender = parent
            while t.lender is not None and t.lender.pool != pool:
                up = t.lender.parent
                t.lender = up if up is not None and up.state == "RUNNING" else None
        lend = t.lender is not None and t.lender.loan is None
        alone = not any(self.waiting(p) for p in self.domain(spec.domain))
        first = alone or (t.lender is not None and lend and not t.lender.waiters)
        open_ = not self.scopes[scope].open_at(self.now) and not self.account_closed(pool)
        at_once = first and open_ and (lend or self.lane_free(pool)) and self.lacking(t) is None
        if not at_once and self.waiting(pool) >= spec.max_queued:
            out.code = QUEUE
            return out
        out.ticket = t
        self.live.append(t)
        self.note("submit", t, tokens)
        if t.parent:
            t.parent.kids += 1
        if at_once:
            self.grant(t, queued=False, in_turn=True, loan=lend)
            out.at_once = True
            return out
        self.move(t, "WAITING")
        demoted = t.policy == "mlfq" and t.klass == 0 and t.level > 0  # behind others' interactive work only
        self.enqueue(t, bool(flags & RESUMED) or demoted)
        self.join_waiters(t)
        more = self.dispatch(spec.domain, STEPS)
        out.at_once = t.state == "RUNNING"
        if out.at_once:
            out.granted.remove(t)
        if flags & TRY and not out.at_once:
            due = out.due
            self.leave_queue(t)
            self.dispatch(spec.domain)
            out.due, out.code, out.ticket = due, QUEUE, None
        elif more:
            self.dispatch(spec.domain)
        return out

    def settle(self, now_ns: int, t: Ticket, outcome: int, tokens: int, by: int = 0) -> Outcome:
        out = self.begin(now_ns, by)
        if t.state not in ("RUNNING", "ZOMBIE"):
            out.code = STALE
            return out
        spec, state, lane = self.config.pools[t.pool], self.pools[t.pool], max(0, self.now - t.granted)
        refund = outcome == REFUND
        for i in spec.limits:
            self.correct_limit(i, t, tokens, refund)
        charged = t.cost if t.charged else 0
        if t.state == "ZOMBIE":
            state.dead -= 1
            cost = max(charged, 0 if refund else self.memory_cost(t, lane))  # that it held until now
            self.note("zombie_end", t, lane << 2 | outcome)
        else:
            self.give_lane_back(t)
            self.child_ended(t)
            if not refund:
                state.ewma = state.ewma + trunc(lane - state.ewma, 8) if state.ewma else lane
                if state.policy == "mlfq":
                    self.feedback(t, lane, tokens)
            cost = 0 if refund else self.cost(t, tokens, lane)
            if outcome == DONE:
                self.scopes[t.scope].succeeded()
                if spec.account_scope >= 0:
                    self.scopes[spec.account_scope].succeeded()
            self.note("settle", t, lane << 2 | outcome)
        if charged or self.waiting(t.pool):
            self.adjust(t, cost - charged)
        self.end(t)
        self.dispatch(spec.domain)
        return out

    def cancel(self, now_ns: int, t: Ticket, by: int = 0) -> Outcome:
        out = self.begin(now_ns, by)
        if t.state != "WAITING":
            out.code = STALE if t.state == "CLAIMED" else STATE
            return out
        self.leave_queue(t)
        self.dispatch(self.config.pools[t.pool].domain)
        return out

    def reap(self, now_ns: int, t: Ticket, by: int = 0) -> Outcome:
        out = self.begin(now_ns, by)
        if t.state != "RUNNING":
            out.code = STALE
            return out
        self.give_lane_back(t)
        self.child_ended(t)
        self.pools[t.pool].dead += 1
        self.move(t, "ZOMBIE")
        self.note("reap", t, self.now - t.granted)
        self.dispatch(self.config.pools[t.pool].domain)
        return out

    def heartbeat(self, now_ns: int, t: Ticket) -> int:
        self.begin(now_ns)
        if t.state != "RUNNING":
            return STALE
        t.beat = max(t.beat, self.now)
        return OK

    def overdue(self, now_ns: int) -> set[tuple[int, str]]:
        self.begin(now_ns)
        found = set()
        for t in self.live:
            if t.state != "RUNNING":
                continue
            if t.run and self.now >= t.granted + t.run:
                found.add((t.handle, "run"))
            elif t.idle and not t.kids and self.now - max(t.granted, t.beat) >= t.idle:
                found.add((t.handle, "idle"))
        return found

    def advance(self, now_ns: int, by: int = 0) -> Outcome:
        out = self.begin(now_ns, by)
        for domain in sorted({p.domain for p in self.config.pools}):
            self.dispatch(domain)
        return out

    def poll(self, by: int) -> list[Ticket]:
        fetched, self.mail[by] = self.mail[by], []
        for t in fetched:
            t.mailed = False
        return fetched

    def try_acquire(self, now_ns: int, limit: int, amount: int) -> Outcome:
        out, x = self.begin(now_ns), self.limits[limit]
        if amount > x.capacity:
            out.code = TOO_LARGE
        elif self.saver(limit):
            out.code = 0
        elif not x.room(amount, self.now):
            self.earliest(x.due(amount, self.now))
        else:
            x.take(amount, self.now)
            out.code = 1
        return out

    def penalise(self, now_ns: int, scope: int, until_ns: int, cut: int, since_ns: int) -> None:
        out, epoch = self.begin(now_ns), self.config.epoch_ns
        until, since = max(0, -(-(until_ns - epoch) // 1000)), max(0, (since_ns - epoch) // 1000)
        self.scopes[scope].penalise(until, cut, since, self.now)
        out.events.append(("penalty", None, self.scopes[scope].pool + 1, 0, until - self.now))

    def reopen(self, now_ns: int, scope: int) -> None:
        self.begin(now_ns)
        self.scopes[scope].until = 0
        self.scopes[scope].forget()

    # --- the end of a ticket ---

    def leave_queue(self, t: Ticket) -> None:
        self.leave_waiters(t)
        self.child_ended(t)
        if t.parked:
            self.drop_parked(t)
        else:
            self.dequeue(t)
        self.note("cancel", t, self.now - t.submitted)
        self.end(t)

    def end(self, t: Ticket) -> None:
        if t.mailed:
            self.mail[t.owner].remove(t)
        self.move(t, "CLAIMED")
        self.live.remove(t)
