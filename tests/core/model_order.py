"""The model's order: at which level and after whom a ticket waits, what its work costs its agent and tenant, and how use
demotes, ageing and the boost lift, and a closed scope sets aside."""

from __future__ import annotations

from tests.core.model_limits import trunc
from tests.core.model_queue import Ticket
from tests.core.model_state import State, Use

SHARE = 1 << 13  # a whole quantum


class Order(State):
    # --- levels: entry and feedback ---

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

    # --- cost ---

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

    # --- the queue ---

    def keys(self, t: Ticket) -> tuple[object, object]:
        tenant, agent = t.flow_keys()
        return (self.agents[t.agent].tenant if tenant is None else tenant), agent

    def head_arrival(self, t: Ticket) -> int:
        return self.pools[t.pool].levels[t.level].flows[self.keys(t)[0]].arrival

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

    # --- set aside while their scope is closed ---

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
