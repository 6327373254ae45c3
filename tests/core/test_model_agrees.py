"""The C core and the Python model, side by side: the same calls at the same times give the same answers."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from typing import Any

import pytest
from agentrm.core._agentrm_core import lib
from hypothesis import HealthCheck, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrm.core.kernel import EVENTS, Kernel, KernelConfig, Limit, Pool
from tests.core import model as m
from tests.core.model_limits import Gauge

INF = float("inf")
SMALL: dict[str, Any] = {"tickets": 64, "agents": 16, "tenants": 8, "scopes": 8, "owners": 4, "events": 512}
QUICK: dict[str, Any] = {"age_s": 0.4, "boost_s": 1.0, "backfill_s": 0.05, "backfill_passes": 3}
REQUESTS = Limit("requests", "rolling", 5, 0.2)
TOKENS = Limit("tokens", "bucket", 1000, 0.5, 400)
COSTS: dict[str, Any] = {"request_cost_us": 500, "token_cost_q8": 2560}
# (configuration, names of the scopes by pool; the first scope is pool -1, an account)
CONFIGS: dict[str, tuple[KernelConfig, tuple[int, ...]]] = {
    "lanes alone": (KernelConfig(pools=(Pool(lanes=2, zombies=1),), **SMALL, **QUICK), (-1,)),
    "one pool, both limits": (
        KernelConfig(limits=(REQUESTS, TOKENS), pools=(Pool(3, (0, 1), zombies=2, **COSTS),), **SMALL, **QUICK),
        (-1, 0),
    ),
    "two pools share an account's limit": (
        KernelConfig(
            limits=(REQUESTS, TOKENS, Limit("tokens", "rolling", 300, 0.3)),
            pools=(
                Pool(2, (0, 1), zombies=1, account_scope=0, **COSTS),
                Pool(1, (1, 2), account_scope=0, policy="priority", **COSTS),
                Pool(1, (), domain=1),
            ),
            **SMALL, **QUICK,
        ),
        (-1, 0, 1),
    ),
    "several models in a pool": (
        KernelConfig(limits=(TOKENS,), pools=(Pool(2, (0,), zombies=0, account_scope=0, **COSTS),), **SMALL, **QUICK),
        (-1, 0, 0, 0),
    ),
    "memory and concurrency gauges": (
        KernelConfig(
            limits=(Limit("memory", "gauge", 100), Limit("requests", "gauge", 3)),
            pools=(Pool(8, (0, 1), zombies=4),), **SMALL, **QUICK,
        ),
        (-1,),
    ),
    "memory decides who is next": (
        KernelConfig(limits=(Limit("memory", "gauge", 100),), pools=(Pool(8, (0,), zombies=8),), **SMALL, **QUICK),
        (-1,),
    ),
    "tools that must not run together": (
        KernelConfig(
            limits=(Limit("requests", "gauge", 1), Limit("requests", "gauge", 2), Limit("requests", "gauge", 6)),
            pools=(
                Pool(3, (0, 2), zombies=2, takes=(0, 1)),
                Pool(2, (0, 1, 2), zombies=1, takes=(1, 1, 1)),
                Pool(2, (1, 2), zombies=0),
                Pool(1, (2,), zombies=1, takes=(6,)),
            ),
            **SMALL, **QUICK,
        ),
        (-1, 0, 1, 2, 3),
    ),
    "memory, one's own and shared": (
        KernelConfig(
            limits=(TOKENS, Limit("memory", "gauge", 100), Limit("memory", "gauge", 120), REQUESTS),
            pools=(Pool(4, (0, 1, 3), zombies=1), Pool(2, (0, 2, 3), oversize_debt=True), Pool(3, (0, 1, 2))),
            **SMALL, **(QUICK | {"backfill_passes": 0}),
        ),
        (-1, 0, 1),
    ),
    "oversize debt": (
        KernelConfig(
            limits=(Limit("tokens", "bucket", 100, 0.2, 100), Limit("tokens", "rolling", 150, 0.2)),
            pools=(Pool(4, (0, 1), oversize_debt=True),), **SMALL, **QUICK,
        ),
        (-1,),
    ),
    "full tables": (
        KernelConfig(
            pools=(Pool(1, max_queued=4),), **(SMALL | {"tickets": 9}), **(QUICK | {"age_s": INF, "boost_s": INF}),
            quanta_s=(INF, INF, INF),
        ),
        (-1,),
    ),
    "short quanta": (
        KernelConfig(
            pools=(Pool(1, **COSTS),), quanta_s=(0.01, 0.05, INF), quanta_tokens=(50.0, 200.0, INF), **SMALL, **QUICK
        ),
        (-1,),
    ),
} | {
    policy: (KernelConfig(limits=(TOKENS,), pools=(Pool(2, (0,), policy=policy, **COSTS),), **SMALL, **QUICK), (-1, 0))
    for policy in ("fifo", "rr", "priority", "mlfq", "drf", "custom")
}  # fmt: skip
OUTCOMES = st.sampled_from((m.DONE, m.DONE, m.DONE, m.FAILED, m.REFUND))


class Agreement(RuleBasedStateMachine):
    config_name: str | None = None  # drawn, unless a test names one

    @initialize(data=st.data(), participants=st.sampled_from((0, 1, 2)))
    def start(self, data: st.DataObject, participants: int) -> None:
        """0 participants: a private arena, which has one and keeps no log."""
        name = self.config_name or data.draw(st.sampled_from(sorted(CONFIGS)))
        self.config, scopes = CONFIGS[name]
        if name == "full tables":
            participants = min(participants, 1)  # a second one keeps slots in a cache of its own
        self.config = replace(self.config, shared=participants > 0)
        note(f"configuration {name!r}, {participants} participants")
        self.memory = mmap.mmap(-1, 1 << 22)
        self.kernels = [Kernel(self.config, self.memory)]
        self.kernels += [Kernel(None, self.memory, attach=True) for _ in range(participants - 1)]
        self.model = m.Model(self.config)
        self.custom = self.config.pools[0].policy == "custom"
        self.memory_counts = any(x.unit == "memory" for x in self.config.limits)
        self.now = 0
        self.seen = 0
        self.past: list[m.Ticket] = []
        k = self.kernels[0]
        for i, weight in enumerate((1.0, 3.0)):
            assert k.tenant(f"tenant {i}", weight) == self.model.tenant(weight)
        for i, (tenant, weight) in enumerate(((0, 1.0), (0, 2.0), (1, 1.0), (1, 0.5))):
            assert k.agent(f"agent {i}", tenant, weight) == self.model.agent(tenant, weight)
        for i, pool in enumerate(scopes):
            assert k.scope(f"scope {i}", pool) == self.model.scope(pool)

    # --- comparing ---

    def agree(self, by: int, out: m.Outcome) -> None:
        k = self.kernels[by]
        assert k.granted() == [t.handle for t in out.granted], "grants, in order"
        assert [k.io.wake[i] for i in range(k.io.n_wake)] == out.woken
        assert k.next_due_ns() == out.due
        self.agree_on_events(out)

    def agree_on_events(self, out: m.Outcome) -> None:
        real = self.kernels[0].events(self.seen)
        self.seen = self.kernels[0].event_head()
        assert [(e.kind, e.handle, e.pool, e.level, e.value) for e in real] == [
            (kind, t.handle if t else 0, pool, level, value) for kind, t, pool, level, value in out.events
        ]

    def ticket(self, data: st.DataObject, *states: str) -> m.Ticket:
        live = [t for t in self.model.live if not states or t.state in states]
        if not live or data.draw(st.integers(0, 19)) == 19:
            live = self.past[-20:]  # a late call with the handle of an ended ticket
        return data.draw(st.sampled_from(live))

    def by(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.kernels) - 1)) if len(self.kernels) > 1 else 0

    # --- the calls ---

    @rule(us=st.sampled_from((0, 1, 7, 500, 3_000, 20_000, 60_000, 200_000, 450_000, 1_000_000)))
    def time_passes(self, us: int) -> None:
        self.now += us * 1000 + (us % 2) * 400

    @rule(
        data=st.data(), agent=st.integers(0, 3), klass=st.integers(0, 2), tokens=st.sampled_from((0, 10, 50, 90, 250,
        400)),
        flags=st.sampled_from((0, 0, 0, 0, m.RESUMED, m.TRY, m.AWAITED)), nested=st.booleans(), limits=st.booleans(),
    )  # fmt: skip
    def submit(
        self, data: st.DataObject, agent: int, klass: int, tokens: int, flags: int, nested: bool, limits: bool
    ) -> None:
        pool = data.draw(st.integers(0, len(self.config.pools) - 1)) if len(self.config.pools) > 1 else 0
        own = [i for i in range(self.model.named_scopes) if self.model.scopes[i].pool == pool] or [7]
        scope = data.draw(st.sampled_from(own))
        parent = None
        if nested and (running := [t for t in self.model.live if t.state in ("RUNNING", "ZOMBIE")]):
            parent = data.draw(st.sampled_from(running))
        extra: dict[str, int] = {}
        if self.custom:
            extra = {"key": data.draw(st.integers(0, 5)), "level": data.draw(st.integers(0, 2))}
        if limits:
            extra |= {"idle": data.draw(st.integers(0, 30_000)), "run": data.draw(st.integers(0, 90_000))}
        if self.memory_counts:
            extra["memory"] = data.draw(st.sampled_from((0, 10, 40, 100, 101)))
        self.submits(self.by(data), pool, agent, klass, scope, tokens, flags, parent, extra)

    def submits(
        self, by: int, pool: int, agent: int, klass: int, scope: int, tokens: int, flags: int, parent: m.Ticket | None,
        extra: dict[str, int],
    ) -> None:  # fmt: skip
        k = self.kernels[by]
        for field, value in extra.items():
            setattr(k.io.req, {"idle": "idle_us", "run": "run_us"}.get(field, field), value)
        k.io.req.parent = parent.handle if parent else 0
        out = self.model.submit(
            self.now, pool, agent, klass, scope, tokens, flags=flags, by=by, parent=parent, **extra
        )
        rc = k.submit(pool | klass << 10 | flags << 12 | agent << 16 | scope << 40, tokens, self.now)
        if out.code < 0:
            assert rc == out.code
        else:
            assert out.ticket is not None and rc >= 0
            out.ticket.handle = rc >> 1
            assert bool(rc & 1) == out.at_once
            assert out.ticket.handle not in [t.handle for t in self.past], "a handle is given once"
            self.past.append(out.ticket)
        if flags & m.TRY and out.code == m.QUEUE:  # the handle is known from the events alone
            new = [e for e in k.events(self.seen) if e.kind == "submit"]
            for kind, t, *_ in out.events:
                if kind == "submit" and t and new:
                    t.handle = new[0].handle
        self.agree(by, out)

    @precondition(lambda self: self.past)
    @rule(data=st.data(), outcome=OUTCOMES, tokens=st.sampled_from((0, 10, 60, 100, 300)))
    def settle(self, data: st.DataObject, outcome: int, tokens: int) -> None:
        self.settles(self.by(data), self.ticket(data, "RUNNING", "RUNNING", "ZOMBIE"), outcome, tokens)

    def settles(self, by: int, t: m.Ticket, outcome: int, tokens: int) -> None:
        out = self.model.settle(self.now, t, outcome, tokens, by)
        rc = self.kernels[by].settle(t.handle, outcome | tokens << 2, self.now)
        assert rc == (out.code or len(out.granted))
        self.agree(by, out)

    @precondition(lambda self: self.memory_counts)
    @rule(
        rivals=st.lists(st.tuples(st.integers(0, 3), st.sampled_from((10, 40, 70))), min_size=2, max_size=5),
        rounds=st.integers(1, 3), us=st.sampled_from((3_000, 20_000, 60_000)),
    )  # fmt: skip
    def tenants_compete_for_memory(self, rivals: list[tuple[int, int]], rounds: int, us: int) -> None:
        """Calls of one pool, short of memory, of both tenants; each in turn ends after a while and another one comes: what
        was held, and for how long, decides who is next."""
        scope = next((i for i in range(self.model.named_scopes) if self.model.scopes[i].pool == 0), 7)
        for _ in range(rounds):
            for agent, memory in rivals:
                self.submits(0, 0, agent, 0, scope, 0, 0, None, {"memory": memory})
            self.now += us * 1000
            for t in [t for t in self.model.live if t.state == "RUNNING"]:
                self.settles(0, t, m.DONE, 0)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        t, by = self.ticket(data, "WAITING"), self.by(data)
        out = self.model.cancel(self.now, t, by)
        assert self.kernels[by].cancel(t.handle, self.now) == (out.code or len(out.granted))
        self.agree(by, out)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        t, by = self.ticket(data, "RUNNING"), self.by(data)
        out = self.model.reap(self.now, t, by)
        assert self.kernels[by].reap(t.handle, self.now) == (out.code or len(out.granted))
        self.agree(by, out)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        t = self.ticket(data)
        assert self.kernels[0].heartbeat(t.handle, self.now) == self.model.heartbeat(self.now, t)

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        by = self.by(data)
        out = self.model.advance(self.now, by)
        assert self.kernels[by].advance(self.now) == len(out.granted)
        self.agree(by, out)

    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        by = self.by(data)
        fetched = self.model.poll(by)
        assert self.kernels[by].poll() == len(fetched)
        assert self.kernels[by].granted() == [t.handle for t in fetched]

    @rule()
    def sweep(self) -> None:
        assert set(self.kernels[0].overdue(self.now)) == self.model.overdue(self.now)

    @precondition(lambda self: self.config.limits)
    @rule(data=st.data(), amount=st.sampled_from((1, 2, 30, 120, 500)))
    def try_acquire(self, data: st.DataObject, amount: int) -> None:
        limit = data.draw(st.integers(0, len(self.config.limits) - 1))
        out = self.model.try_acquire(self.now, limit, amount)
        assert self.kernels[0].try_acquire(limit, amount, self.now) == out.code
        assert self.kernels[0].next_due_ns() == out.due

    @precondition(lambda self: self.config.limits)
    @rule(data=st.data(), remaining=st.sampled_from((0, 1, 40, 300)))
    def the_provider_says_what_is_left(self, data: st.DataObject, remaining: int) -> None:
        limit = data.draw(st.integers(0, len(self.config.limits) - 1))
        x = self.model.limits[limit]
        if not isinstance(x, Gauge):
            self.model.begin(self.now)
            x.provider_says(remaining, self.model.now)
            self.kernels[0].correct(limit, remaining, self.now)

    @rule(data=st.data(), wait=st.sampled_from((0, 900, 5_000, 80_000)), cut=st.integers(0, 2), ago=st.integers(0, 50_000))
    def penalise(self, data: st.DataObject, wait: int, cut: int, ago: int) -> None:
        scope = data.draw(st.integers(0, self.model.named_scopes - 1))
        until, since = self.now + wait * 1000 + 1, max(0, self.now - ago * 1000)
        self.model.penalise(self.now, scope, until, cut, since)
        self.kernels[0].penalise(scope, until, cut, since, self.now)
        self.agree_on_events(self.model.out)

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        scope = data.draw(st.integers(0, self.model.named_scopes - 1))
        self.model.reopen(self.now, scope)
        self.kernels[0].reopen(scope, self.now)

    @precondition(lambda self: not self.custom)
    @rule(data=st.data(), policy=st.sampled_from(("fifo", "rr", "priority", "mlfq", "drf")))
    def change_the_policy(self, data: st.DataObject, policy: str) -> None:
        if data.draw(st.integers(0, 4)) == 4:
            self.model.pools[0].policy = policy
            self.kernels[0].set_policy(0, policy)

    # --- what must hold after each of them ---

    @invariant()
    def same_state(self) -> None:
        k = self.kernels[-1]
        k.check()
        for i, p in enumerate(self.model.pools):
            info = k.pool_info(i)
            assert (info.used, info.dead, info.waiting) == (p.used, p.dead, self.model.waiting(i))
            assert list(info.level_start) == [level.vtime for level in p.levels]
            assert info.ewma_us == p.ewma
        self.model.begin(self.now)
        for i, x in enumerate(self.model.limits):
            assert k.limit_info(i, self.now).level == x.level(self.model.now), f"limit {i}"
        for i in range(self.model.named_scopes):
            scope, s = k.scope_info(i), self.model.scopes[i]
            assert (scope.closed_until_ns, scope.next_ns) == (s.until * 1000, s.next * 1000)
            assert (scope.gap_us, scope.factor, scope.parked) == (s.gap(), s.factor, s.count())
        for a in range(4):
            for klass in range(3):
                assert k.demotion(a, klass, self.now) == self.model.demotion(self.now, a, klass)
        real = sorted((t.handle, lib_state(t.state), t.level, t.passes, t.loan, t.kids, t.owner) for t in k.tickets())
        assert real == sorted(
            (t.handle, t.state, t.level, t.passes, int(t.on_loan), t.kids, t.owner) for t in self.model.live
        )


def lib_state(state: int) -> str:
    return ("FREE", "CLAIMED", "WAITING", "RUNNING", "ZOMBIE")[state]


def run(name: str | None, examples: int, steps: int, number: int) -> None:
    machine = type("Agreement", (Agreement,), {"config_name": name})
    print(f"seed {number}: AGENTRM_MODEL_SEED={number} repeats it")
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    options = settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
                       suppress_health_check=checks)  # fmt: skip
    seeded = seed(number)(machine)
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(seeded, settings=options)


SEED = int(os.environ.get("AGENTRM_MODEL_SEED", "20250"))
EXAMPLES = int(os.environ.get("AGENTRM_MODEL_EXAMPLES", "12"))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_kernel_and_model_answer_alike(name: str) -> None:
    run(name, EXAMPLES, 60, SEED)


def test_every_kind_of_event_is_compared() -> None:
    assert set(EVENTS.values()) == {"submit", "grant", "settle", "cancel", "reap", "penalty", "zombie_end"}
    assert len(EVENTS) == lib.ARM_EV_ZOMBIE_END
