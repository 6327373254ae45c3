"""The kernel's semantics in plain Python: the readable specification that the C core is compared with.

Everything is a list or a sort; nothing is fast. Times are microseconds since the epoch inside and nanoseconds at the
border, as in the kernel. `test_model_agrees.py` runs both side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrm.core.kernel import KernelConfig
from tests.core.model_limits import Bucket, Gauge, Rolling, Scope, trunc
from tests.core.model_queue import SCAN, SHARED, Level, Ticket

# The states of a ticket and why it moves (the same table stands in csrc/arm.h and docs/kernel.md).
TRANSITIONS = {
    ("FREE", "CLAIMED"): "a participant takes an unused slot into its private cache",
    ("CLAIMED", "WAITING"): "submit, no room",
    ("CLAIMED", "RUNNING"): "submit, room",
    ("WAITING", "RUNNING"): "grant: by settle, cancel, reap, advance or another submit",
    ("WAITING", "CLAIMED"): "cancel (the slot goes to the canceller's cache, generation + 1)",
    ("RUNNING", "CLAIMED"): "settle, refund",
    ("RUNNING", "ZOMBIE"): "reap of work that cannot be stopped",
    ("ZOMBIE", "CLAIMED"): "settle when that work ends at last",
    ("CLAIMED", "FREE"): "cache overflow, or the owner died",
}

OK, STALE, FULL, TOO_LARGE, ARGUMENT, QUEUE, STATE = 0, -1, -2, -3, -4, -7, -8
DONE, FAILED, REFUND = 0, 1, 2
RESUMED, TRY, AWAITED = 1, 2, 4
STEPS = 4  # of dispatch in the transaction that submits; the rest follow in transactions of their own
SHARE = 1 << 13  # a whole quantum


def finite(x: float, scale: float) -> int:
    """0 stands for never."""
    return 0 if x == float("inf") else int(x * scale)


@dataclass
class Use:
    last_ms: int = 0  # when its work of that class last ended
    demotion: int = 0
    share: int = 0


@dataclass
class Agent:
    tenant: int
    weight: int
    uses: dict[int, Use] = field(default_factory=dict)  # by class


@dataclass
class PoolState:
    levels: tuple[Level, Level, Level] = field(default_factory=lambda: (Level(), Level(), Level()))
    used: int = 0
    dead: int = 0
    ewma: int = 0
    aging: list[Ticket] = field(default_factory=list)
    background_served: int = 0
    demoted: list[Ticket] = field(default_factory=list)
    lenders: list[Ticket] = field(default_factory=list)
    parkers: list[Scope] = field(default_factory=list)
    policy: str = "mlfq"


@dataclass
class Outcome:
    """What one call of the kernel answers."""

    code: int = OK
    ticket: Ticket | None = None
    at_once: bool = False
    granted: list[Ticket] = field(default_factory=list)
    woken: list[int] = field(default_factory=list)
    due: int | None = None
    events: list[tuple[str, Ticket | None, int, int, int]] = field(default_factory=list)


class Model:
    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self.age, self.boost = finite(config.age_s, 1e6), finite(config.boost_s, 1e6)
        self.pause = int(config.pause_s * 1e6)
        self.quanta_us = [finite(q, 1e6) for q in config.quanta_s]
        self.quanta_tokens = [finite(q, 1) for q in config.quanta_tokens]
        self.limits: list[Rolling | Bucket | Gauge] = []
        for x in config.limits:
            if x.shape == "gauge":
                self.limits.append(Gauge(x.amount))
            elif x.shape == "rolling":
                self.limits.append(Rolling(x.amount, round(x.window_s * 1e6)))
            else:
                self.limits.append(Bucket(x.amount, round(x.window_s * 1e6), x.burst or x.amount))
        self.savers: list[Ticket | None] = [None] * len(config.limits)
        self.pools = [PoolState(policy=p.policy) for p in config.pools]
        self.scopes: list[Scope] = [Scope() for _ in range(config.scopes)]
        self.named_scopes = 0
        self.tenants: list[int] = []  # weights, times 1024
        self.agents: list[Agent] = []
        self.live: list[Ticket] = []
        self.mail: list[list[Ticket]] = [[] for _ in range(config.owners)]
        self.submits = self.now = self.by = 0
        self.out = Outcome()

    # --- names ---

    def tenant(self, weight: float = 1.0) -> int:
        self.tenants.append(round(weight * 1024))
        return len(self.tenants) - 1

    def agent(self, tenant: int, weight: float = 1.0) -> int:
        self.agents.append(Agent(tenant, round(weight * 1024)))
        return len(self.agents) - 1

    def scope(self, pool: int = -1) -> int:
        self.scopes[self.named_scopes].pool = pool
        self.named_scopes += 1
        return self.named_scopes - 1

    # --- the calls ---

    def begin(self, now_ns: int, by: int = 0) -> Outcome:
        """Each call starts here: the time, and the participant that calls."""
        self.now, self.by, self.out = max(0, now_ns - self.config.epoch_ns) // 1000, by, Outcome()
        return self.out

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
        self.dispatch(spec.domain, STEPS)
        out.at_once = t.state == "RUNNING"
        if out.at_once:
            out.granted.remove(t)
        if flags & TRY and not out.at_once:
            due = out.due
            self.leave_queue(t)
            self.dispatch(spec.domain)
            out.due, out.code, out.ticket = due, QUEUE, None
        else:
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

    # --- choosing ---

    def dispatch(self, domain: int, steps: int = 10_000) -> None:
        while steps and any(self.waiting(p) for p in self.domain(domain)) and self.step(domain):
            steps -= 1

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

    def head_arrival(self, t: Ticket) -> int:
        return self.pools[t.pool].levels[t.level].flows[self.keys(t)[0]].arrival

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

    # --- lanes, loans, the end of a ticket ---

    def lane_free(self, p: int) -> bool:
        spec, state = self.config.pools[p], self.pools[p]
        return state.used + max(0, state.dead - spec.zombies) < spec.lanes

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

    def end(self, t: Ticket) -> None:
        if t.mailed:
            self.mail[t.owner].remove(t)
        self.move(t, "CLAIMED")
        self.live.remove(t)

    def leave_queue(self, t: Ticket) -> None:
        self.leave_waiters(t)
        self.child_ended(t)
        if t.parked:
            self.drop_parked(t)
        else:
            self.dequeue(t)
        self.note("cancel", t, self.now - t.submitted)
        self.end(t)

    def move(self, t: Ticket, state: str) -> None:
        assert (t.state, state) in TRANSITIONS, f"{t.state} -> {state}"
        t.state = state

    # --- queue ---

    def keys(self, t: Ticket) -> tuple[object, object]:
        tenant, agent = t.flow_keys()
        return (self.agents[t.agent].tenant if tenant is None else tenant), agent

    def waiting(self, p: int) -> int:
        """In the queue or parked."""
        return sum(t.state == "WAITING" and t.pool == p for t in self.live)

    def domain(self, domain: int) -> list[int]:
        return [i for i, p in enumerate(self.config.pools) if p.domain == domain][::-1]

    def enqueue(self, t: Ticket, front: bool) -> None:
        self.pools[t.pool].levels[t.level].add(t, *self.keys(t), front)
        t.since = self.now
        if t.policy == "custom":
            return
        if t.level > t.klass and self.boost:
            self.pools[t.pool].demoted.append(t)
        elif t.level == 2 and self.age:
            self.pools[t.pool].aging.append(t)

    def unlist(self, t: Ticket) -> None:
        for line in (self.pools[t.pool].demoted, self.pools[t.pool].aging):
            if t in line:
                line.remove(t)

    def dequeue(self, t: Ticket) -> None:
        self.unlist(t)
        self.pools[t.pool].levels[t.level].remove(t, *self.keys(t))

    def lift(self, p: int) -> None:
        """Ageing moves background work up by one level if that level was not served meanwhile; the boost moves
        demoted work back to its class."""
        state = self.pools[p]
        for line, patience in ((state.aging, self.age), (state.demoted, self.boost)):
            for _ in range(2):
                since = max(line[0].since, state.background_served if line is state.aging else 0) if line else 0
                if line and since + patience <= self.now:
                    t, level = line[0], 1 if line is state.aging else line[0].klass
                    self.dequeue(t)
                    t.level = level
                    self.enqueue(t, False)

    def entry_level(self, agent: int, klass: int, policy: str, custom: int) -> int:
        if policy == "custom":
            return custom
        if policy == "priority":
            return klass
        if policy != "mlfq":
            return 0
        return min(klass + self.usage(agent, klass).demotion, 1 if klass == 0 else 2)

    def usage(self, agent: int, klass: int) -> Use:
        """What is left of it after the last boost."""
        use = self.agents[agent].uses.get(klass, Use())
        boosted = self.boost and use.last_ms * 1000 // self.boost != self.now // self.boost
        return Use(use.last_ms) if boosted else Use(use.last_ms, use.demotion, use.share)

    def demotion(self, now_ns: int, agent: int, klass: int) -> int:
        self.begin(now_ns)
        return self.entry_level(agent, klass, "mlfq", 0) - klass

    def feedback(self, t: Ticket, lane: int, tokens: int) -> None:
        """A whole quantum used up demotes the agent's work of that class until the next boost."""
        a = self.usage(t.agent, t.klass)
        level = min(2, t.klass + a.demotion)
        shares = [
            min(used, quantum) * SHARE // quantum
            for used, quantum in ((lane, self.quanta_us[level]), (tokens, self.quanta_tokens[level]))
            if quantum
        ]
        if not shares:
            return
        if t.submitted // 1000 - a.last_ms >= self.pause // 1000:
            a.share = 0
        a.last_ms = self.now // 1000
        a.share += max(shares)
        if a.share >= SHARE:
            a.share, a.demotion = 0, min(2, a.demotion + 1)
        self.agents[t.agent].uses[t.klass] = a

    def cost(self, t: Ticket, tokens: int, lane_us: int) -> int:
        """The largest share of the pool, in microseconds of the whole pool."""
        spec = self.config.pools[t.pool]
        if t.policy in ("fifo", "priority"):
            return 0
        if t.policy == "rr":
            return 1_000_000
        lanes, tokens = lane_us // spec.lanes, tokens * spec.token_cost_q8 >> 8
        return max(1, lanes, spec.request_cost_us, tokens, self.memory_cost(t, lane_us))

    def memory_cost(self, t: Ticket, held_us: int) -> int:
        """Memory is held: what part of it, in 1/65536, and for how long."""
        gauges = [i for i in self.config.pools[t.pool].limits if self.config.limits[i].unit == "memory"]
        return held_us * max(((self.need(t, i) << 16) // self.config.limits[i].amount for i in gauges), default=0) >> 16

    def adjust(self, t: Ticket, difference: int) -> None:
        """The work cost more or less than was charged."""
        tenant, agent = self.keys(t)
        if not difference or t.policy not in ("mlfq", "drf"):
            return
        up = self.pools[t.pool].levels[t.level].flows.get(tenant)
        pairs = [(up, self.tenants[self.agents[t.agent].tenant])]
        pairs.append((up.flows.get(agent) if up else None, self.agents[t.agent].weight))
        for flow, weight in pairs:
            if flow is None:
                continue
            by = trunc(difference * 1024, weight)
            if flow.waiting():
                flow.adjust += by
            else:
                flow.finish = max(0, flow.finish + by)

    # --- scopes ---

    def account_closed(self, p: int) -> int:
        account = self.config.pools[p].account_scope
        return self.scopes[account].open_at(self.now) if account >= 0 else 0

    def park(self, t: Ticket) -> None:
        scope = self.scopes[t.scope]
        self.dequeue(t)
        t.parked = True
        scope.park(t)
        if scope not in self.pools[t.pool].parkers:
            self.pools[t.pool].parkers.insert(0, scope)

    def drop_parked(self, t: Ticket) -> None:
        t.parked = False
        self.scopes[t.scope].parked[t.level].remove(t)

    def unpark(self, p: int) -> None:
        """Back to the front in the order in which they stepped aside; one at a time while the scope is slowed."""
        moved = 0
        for scope in list(self.pools[p].parkers):
            closed = scope.open_at(self.now)
            for _ in range(0 if closed else 1 if scope.gap() else 4):
                if moved < 4 and (t := scope.first_parked()):
                    self.drop_parked(t)
                    self.enqueue(t, True)
                    moved += 1
            if not scope.count():
                self.pools[p].parkers.remove(scope)
            elif closed:
                self.earliest(closed)

    # --- limits ---

    def takes(self, pool: int, i: int) -> int:
        """What every call of the pool takes of a limit; 0: what it states."""
        return dict(zip(self.config.pools[pool].limits, self.config.pools[pool].takes)).get(i, 0)  # noqa: B905

    def need(self, t: Ticket, i: int) -> int:
        return self.takes(t.pool, i) or {"requests": 1, "tokens": t.tokens, "memory": t.memory}[self.config.limits[i].unit]

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

    def lacks_gauge(self, t: Ticket) -> bool:
        """Whether it waits for what leases hold, or will hold once another has got what is saved for it."""
        gauges = (n for n in self.config.pools[t.pool].limits if self.config.limits[n].shape == "gauge")
        needs = [(n, need) for n in gauges if (need := self.need(t, n))]
        return any(self.saved_for_other(n, t) or not self.limits[n].room(need, self.now) for n, need in needs)

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

    def save_up(self, t: Ticket) -> None:
        for i in self.config.pools[t.pool].limits:
            if self.need(t, i) and not self.saved_for_other(i, t):
                self.savers[i] = t

    def correct_limit(self, i: int, t: Ticket, tokens: int, refund: bool) -> None:
        limit, reserved = self.limits[i], self.need(t, i)
        fixed = self.takes(t.pool, i) or self.config.limits[i].unit != "tokens"
        real = 0 if refund else reserved if fixed else tokens
        if not reserved and real and isinstance(limit, Rolling):
            limit.take(real, self.now)
        elif reserved or real:
            limit.correct(t.stamps.get(i), reserved, real, self.now)

    # --- results ---

    def earliest(self, at: int | None) -> None:
        if at is not None:
            at = at * 1000 + self.config.epoch_ns
            self.out.due = at if self.out.due is None else min(self.out.due, at)

    def note(self, kind: str, t: Ticket, value: int) -> None:
        self.out.events.append((kind, t, t.pool, t.level, value))


__all__ = ["SHARED", "TRANSITIONS", "Model", "Outcome", "Ticket"]
