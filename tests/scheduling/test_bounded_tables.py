"""Names that come and go (sessions, tenants, agents) don't fill the memory, and nothing in use is forgotten."""

from __future__ import annotations

import pytest

from agentrm import ResourceManager, VirtualClock
from agentrm.limits.errors import BudgetExceeded
from agentrm.scheduling import budgets, ordering, pool
from agentrm.scheduling.policies import Place, Request, Usage


def spend(rm: ResourceManager, session: str) -> None:
    with rm.lease(session=session, tokens=10) as lease:
        lease.settle(input_tokens=10)


def test_accounts_of_a_pattern_that_renewed_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "MOST_BY_PATTERN", 16)
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, budgets={"session.*": {"tokens": 15, "per": 60}, "session.mine": {"tokens": 15}})
    spend(rm, "mine")
    for number in range(10):
        spend(rm, f"old{number}")
    clock.advance(61)
    for number in range(100):
        spend(rm, f"s{number}")
        with pytest.raises(BudgetExceeded):
            spend(rm, f"s{number}")
        assert len(rm.statistics().budgets) <= 17
    with pytest.raises(BudgetExceeded):
        spend(rm, "mine")  # named in full: never forgotten


def test_an_account_of_a_running_call_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "MOST_BY_PATTERN", 16)
    rm = ResourceManager(pools={"default": {"lanes": 4}}, budgets={"session.*": {"tokens": 15}})
    with rm.lease(session="long", tokens=10):
        for number in range(100):
            with rm.lease(session=f"s{number}", tokens=10, parent=None) as lease:
                lease.settle(input_tokens=10)
        assert rm.statistics().budgets["session.long"].reserved["tokens"] == 10
        with pytest.raises(BudgetExceeded), rm.lease(session="long", tokens=10, parent=None):
            pass


def test_tenants_beyond_the_number_share_an_account_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_SHARES", 4)
    rm = ResourceManager()
    for number in range(20):
        with rm.lease(tenant=f"t{number}", tokens=10) as lease:
            lease.settle(input_tokens=10)
    tenants = rm.statistics().fairness["default"].tenants
    assert len(tenants) <= 5 and sum(tenant.calls for tenant in tenants.values()) == 20


class Counting:
    name = "counting"

    def place(self, request: Request, state: object) -> Place:
        return Place(0, 1)

    def used(self, state: object, usage: Usage) -> object:
        return (state or 0) + 1  # type: ignore[operator]


def test_states_of_a_custom_policy_are_those_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MOST_STATES", 8)
    rm = ResourceManager()
    order = ordering._Custom(Counting(), rm.gate)
    for number in range(50):
        for agent in ("steady", f"a{number}"):
            with rm.lease(agent=agent) as lease:
                order.used(lease, rm.clock.now_ns(), 1)
    assert len(order._states) == 8
    assert order._states["default", "steady"] == 50
