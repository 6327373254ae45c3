"""The model's queue: levels; in each the tenants, in each tenant its agents, by virtual start time (start-time fair
queueing); in each agent's flow its tickets in order of arrival, resumed ones first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCAN, SCAN_FLOW = 16, 4  # at most so many tickets are looked at in a level, and in one agent's flow
SHARED = "shared"


@dataclass(eq=False)
class Ticket:
    pool: int
    klass: int
    level: int
    agent: int
    scope: int
    owner: int
    tokens: int
    memory: int
    arrival: int
    submitted: int
    policy: str
    key: int = 0
    idle: int = 0
    run: int = 0
    state: str = "CLAIMED"
    granted: int = 0
    beat: int = 0
    blocked: int | None = None
    passes: int = 0
    cost: int = 0
    charged: bool = False
    front: bool = False
    parked: bool = False
    mailed: bool = False
    on_loan: bool = False
    since: int = 0  # at this level
    parent: Ticket | None = None
    lender: Ticket | None = None  # nearest enclosing lease of the same pool
    loan: Ticket | None = None  # the child that rides on this lane
    kids: int = 0
    waiters: list[Ticket] = field(default_factory=list)  # waiting children of the same pool
    stamps: dict[int, Any] = field(default_factory=dict)
    handle: int = 0  # what the kernel calls it; set by the test

    @property
    def nested(self) -> bool:
        """A lease waits for it, and with that lease all that it holds."""
        return self.parent is not None and self.parent.state in ("RUNNING", "ZOMBIE")

    def flow_keys(self) -> tuple[object, object]:
        """(tenant or SHARED, agent, ticket or SHARED): in which flows it queues under its policy."""
        if self.policy in ("fifo", "priority"):
            return SHARED, SHARED
        if self.policy == "rr":
            return SHARED, ("turn", self.agent)
        if self.policy == "custom":
            return SHARED, self
        return None, self.agent


class Flow:
    """A tenant's flow holds agents' flows, an agent's flow holds tickets."""

    def __init__(self) -> None:
        self.start = self.arrival = self.finish = self.vtime = self.adjust = 0
        self.flows: dict[object, Flow] = {}
        self.front: list[Ticket] = []
        self.queue: list[Ticket] = []

    def waiting(self) -> int:
        return len(self.front) + len(self.queue) + sum(f.waiting() for f in self.flows.values())

    def tickets(self) -> list[Ticket]:
        return self.front + self.queue

    def next_start(self, vtime: int) -> int:
        """Who becomes active starts now: idling earns nothing. Who is ahead of the time stays there."""
        return max(1, vtime, self.finish)

    def serve(self, vtime: int, charge: int) -> int:
        start = self.start or self.next_start(vtime)  # 0: it was moved to the front
        self.finish = max(0, start + charge + self.adjust)
        self.adjust = 0
        return start


def in_order(flows: dict[object, Flow]) -> list[Flow]:
    return sorted((f for f in flows.values() if f.waiting()), key=lambda f: (f.start, f.arrival))


class Level:
    def __init__(self) -> None:
        self.flows: dict[object, Flow] = {}
        self.vtime = 0

    def waiting(self) -> int:
        return sum(f.waiting() for f in self.flows.values())

    def walk(self) -> list[Ticket]:
        """Tickets in order of service, as many as are looked at."""
        found = [t for tenant in in_order(self.flows) for f in in_order(tenant.flows) for t in f.tickets()[:SCAN_FLOW]]
        return found[:SCAN]

    def path(self, tenant: object, agent: object) -> tuple[Flow, Flow]:
        up = self.flows.setdefault(tenant, Flow())
        return up, up.flows.setdefault(agent, Flow())

    def add(self, t: Ticket, tenant_key: object, agent_key: object, front: bool) -> None:
        tenant, agent = self.path(tenant_key, agent_key)
        had, tenant_had = agent.waiting(), tenant.waiting()
        t.front = front
        (agent.front if front else agent.queue).append(t)
        if front:  # starts before everybody of its level
            agent.start, agent.arrival = 0, agent.front[0].arrival
            tenant.start, tenant.arrival = 0, min(t.arrival, tenant.arrival) if tenant_had else t.arrival
            return
        if not had:
            agent.start = t.key if t.policy == "custom" else agent.next_start(tenant.vtime)
            agent.arrival = t.arrival
        if not tenant_had:
            tenant.start, tenant.arrival = tenant.next_start(self.vtime), t.arrival

    def place_tenant(self, tenant: Flow) -> None:
        children = in_order(tenant.flows)
        if children:
            tenant.start = 0 if children[0].start == 0 else tenant.next_start(self.vtime)
            tenant.arrival = children[0].arrival

    def remove(self, t: Ticket, tenant_key: object, agent_key: object) -> None:
        """Leaves without being served: its flow keeps its place unless nothing at the front is left."""
        tenant, agent = self.path(tenant_key, agent_key)
        (agent.front if t.front else agent.queue).remove(t)
        was_front = t.front and not agent.front
        if was_front and agent.waiting():
            agent.start, agent.arrival = agent.next_start(tenant.vtime), agent.tickets()[0].arrival
        if was_front:
            self.place_tenant(tenant)

    def serve(self, t: Ticket, tenant_key: object, agent_key: object, own: int, whole: int, in_turn: bool) -> None:
        """Charges the agent `own` and the tenant `whole`; one let through out of turn does not move the others'
        time."""
        tenant, agent = self.path(tenant_key, agent_key)
        (agent.front if t.front else agent.queue).remove(t)
        agent_start, tenant_start = agent.serve(tenant.vtime, own), tenant.serve(self.vtime, whole)
        if in_turn:
            tenant.vtime, self.vtime = max(tenant.vtime, agent_start), max(self.vtime, tenant_start)
        if agent.waiting():
            agent.start = 0 if agent.front else agent.next_start(tenant.vtime)
            agent.arrival = agent.tickets()[0].arrival
        self.place_tenant(tenant)
