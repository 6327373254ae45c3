"""The model's state and what is read off it: pools, agents, live tickets, lanes, domains; and what a call answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrm.core.kernel import KernelConfig
from tests.core.model_limits import Bucket, Gauge, Rolling, Scope
from tests.core.model_queue import Level, Ticket

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

OK = 0


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


class State:
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

    def begin(self, now_ns: int, by: int = 0) -> Outcome:
        """Each call starts here: the time, and the participant that calls."""
        self.now, self.by, self.out = max(0, now_ns - self.config.epoch_ns) // 1000, by, Outcome()
        return self.out

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

    # --- looking ---

    def waiting(self, p: int) -> int:
        """In the queue or parked."""
        return sum(t.state == "WAITING" and t.pool == p for t in self.live)

    def domain(self, domain: int) -> list[int]:
        return [i for i, p in enumerate(self.config.pools) if p.domain == domain][::-1]

    def lane_free(self, p: int) -> bool:
        spec, state = self.config.pools[p], self.pools[p]
        return state.used + max(0, state.dead - spec.zombies) < spec.lanes

    def account_closed(self, p: int) -> int:
        account = self.config.pools[p].account_scope
        return self.scopes[account].open_at(self.now) if account >= 0 else 0

    def takes(self, pool: int, i: int) -> int:
        """What every call of the pool takes of a limit; 0: what it states."""
        return dict(zip(self.config.pools[pool].limits, self.config.pools[pool].takes)).get(i, 0)  # noqa: B905

    def need(self, t: Ticket, i: int) -> int:
        return self.takes(t.pool, i) or {"requests": 1, "tokens": t.tokens, "memory": t.memory}[self.config.limits[i].unit]

    # --- changing ---

    def move(self, t: Ticket, state: str) -> None:
        assert (t.state, state) in TRANSITIONS, f"{t.state} -> {state}"
        t.state = state

    def earliest(self, at: int | None) -> None:
        if at is not None:
            at = at * 1000 + self.config.epoch_ns
            self.out.due = at if self.out.due is None else min(self.out.due, at)

    def note(self, kind: str, t: Ticket, value: int) -> None:
        self.out.events.append((kind, t, t.pool, t.level, value))
