"""What the manager shows of itself: a snapshot of who holds and who waits, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrm.core.kernel import STATES

if TYPE_CHECKING:
    from agentrm.limits.account import BudgetStatistics
    from agentrm.scheduling.manager import ResourceManager
    from agentrm.scheduling.pool import PoolState, Share

__all__ = ["LeaseInfo", "LimitStatistics", "PoolStatistics", "ScopeStatistics", "Snapshot", "Statistics"]

PRIORITY_NAMES = ("interactive", "subagent", "background")


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One call. `for_s`: seconds that it has held its lane or waited. `level`: 0 to 2, where the queue has it now."""

    handle: int
    agent: str
    tenant: str
    session: str | None
    pool: str
    priority: str
    level: int
    state: str
    for_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live calls, longest first."""

    holding: tuple[LeaseInfo, ...]
    waiting: tuple[LeaseInfo, ...]
    zombies: tuple[LeaseInfo, ...]


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Of one pool. Counters are since the manager was made; `mean_wait_s` is over granted calls."""

    lanes: int
    in_use: int
    waiting: int
    zombies: int
    granted: int
    settled: int
    failed: int
    refunded: int
    cancelled: int
    reaped: int
    mean_wait_s: float
    usual_lane_s: float
    policy: str
    policy_why: str


@dataclass(frozen=True, slots=True)
class LimitStatistics:
    """Of one limit: what could be taken now (negative: debt) and the most that ever can."""

    resource: str
    shape: str
    level: int
    capacity: int


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """Of one scope of a provider (a model of a pool, or an account). `pace`: 1.0 is full speed."""

    closed_for_s: float
    pace: float
    parked: int


@dataclass(frozen=True, slots=True)
class TenantStatistics:
    """A tenant's part of one pool: what its calls used, and its dominant share, the largest of its shares of lane time,
    requests, tokens and memory, as a part of what all tenants used (0 to 1). `memory_byte_s`: bytes held, times the
    seconds for which they were. `dominant`: which share that is, `lanes`, `requests`, `tokens` or `memory`."""

    weight: float
    calls: int
    lane_s: float
    tokens: int
    memory_byte_s: float
    dominant: str
    dominant_share: float


@dataclass(frozen=True, slots=True)
class Fairness:
    """Between the tenants of one pool. `jain` is Jain's index of the dominant shares by weight: 1.0 is even."""

    tenants: dict[str, TenantStatistics]
    jain: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the whole manager. `events` counts transitions; `running` and `waiting` are over all pools."""

    pools: dict[str, PoolStatistics]
    limits: dict[str, LimitStatistics]
    scopes: dict[str, ScopeStatistics]
    running: int
    waiting: int
    events: int
    budgets: dict[str, BudgetStatistics] = field(default_factory=dict)
    fairness: dict[str, Fairness] = field(default_factory=dict)


def _policy(rm: ResourceManager, pool: str) -> tuple[str, str]:
    if rm.gate.order is None:
        return rm.config.scheduling.policy, "configured"
    choice = rm.gate.order.choice(pool)
    return choice.policy, choice.why


def _fairness(rm: ResourceManager, pool: PoolState) -> Fairness:
    kernel = rm.layout.kernel.pools[pool.index]
    memory = min((x.amount for i in pool.limits if (x := rm.layout.limits[i][1]).resource == "memory"), default=0)
    used: dict[str, tuple[Share, str, float]] = {}
    for name, share in list(pool.shares.items()):
        costs = {  # in microseconds of the whole pool, as the kernel counts
            "lanes": share.lane_ns / 1e3 / pool.lanes,
            "requests": share.calls * kernel.request_cost_us,
            "tokens": share.tokens * kernel.token_cost_q8 / 256,
            "memory": share.memory / 1e3 / memory if memory else 0.0,
        }
        dominant = max(costs, key=costs.__getitem__)
        if share.calls or share.memory:
            used[name] = share, dominant, costs[dominant]
    total = sum(cost for _, _, cost in used.values())
    tenants = {}
    for name, (share, dominant, cost) in used.items():
        tenants[name] = TenantStatistics(
            rm.config.weight_of(name), share.calls, share.lane_ns / 1e9, share.tokens, share.memory / 1e9, dominant,
            cost / total if total else 0.0,
        )  # fmt: skip
    even = [t.dominant_share / t.weight for t in tenants.values()]
    squares = sum(x * x for x in even)
    return Fairness(tenants, sum(even) ** 2 / (len(even) * squares) if squares else 1.0)


def statistics(rm: ResourceManager) -> Statistics:
    """Pools, limits, scopes, budgets and fairness as they are now; reads only."""
    now = rm.clock.now_ns()
    pools = {}
    for name, pool in rm.pools.items():
        info = rm.kernel.pool_info(pool.index)
        kept = max(0, info.dead - info.zombies)
        pools[name] = PoolStatistics(
            info.lanes, info.used + kept, info.waiting, info.dead - kept, pool.granted, pool.settled, pool.failed,
            pool.refunded, pool.cancelled, pool.reaped, pool.waited_s / pool.granted if pool.granted else 0.0,
            info.ewma_us / 1e6,
            *_policy(rm, name),
        )  # fmt: skip
    limits = {}
    for i, (key, limit) in enumerate(rm.layout.limits):
        left = rm.kernel.limit_info(i, now)
        limits[key] = LimitStatistics(limit.resource, limit.counting, left.level, left.capacity)
    scopes = {}
    for i in range(rm.kernel.scope_count()):
        scope = rm.kernel.scope_info(i)
        scopes[rm.kernel.name("scope", i)] = ScopeStatistics(
            max(0.0, (scope.closed_until_ns - now) / 1e9), scope.factor / 65536, scope.parked
        )
    running = sum(p.in_use for p in pools.values())
    budgets = {} if rm.gate.budgets is None else rm.gate.budgets.statistics()
    waiting = sum(p.waiting for p in pools.values())
    fairness = {name: _fairness(rm, pool) for name, pool in rm.pools.items()}
    return Statistics(pools, limits, scopes, running, waiting, rm.kernel.event_head(), budgets, fairness)


def snapshot(rm: ResourceManager) -> Snapshot:
    """Every live lease by state, those first that have been in it for longest; reads only."""
    now = rm.clock.now_ns()
    found: dict[str, list[LeaseInfo]] = {"running": [], "waiting": [], "zombie": []}
    for t in rm.kernel.tickets():
        state = STATES[t.state]
        lease = rm.gate.leases.get(t.handle) or rm.gate.queued.get(t.handle)
        since = t.submitted_ns if state == "waiting" else t.granted_ns
        found[state].append(
            LeaseInfo(
                t.handle, rm.kernel.name("agent", t.agent), rm.kernel.name("tenant", t.tenant),
                lease.session if lease is not None else None, rm.layout.pools[t.pool], PRIORITY_NAMES[t.klass], t.level,
                state, max(0.0, (now - since) / 1e9), t.tokens,
            )
        )  # fmt: skip
    ordered = {state: tuple(sorted(x, key=lambda info: -info.for_s)) for state, x in found.items()}
    return Snapshot(ordered["running"], ordered["waiting"], ordered["zombie"])
