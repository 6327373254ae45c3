"""Budgets and the caller that does not sleep (`Lease.acquire_then`): it is told once, and what it does not use goes
back."""

from __future__ import annotations

from typing import Any

import pytest

import agentrm
from agentrm.errors import ManagerClosed, QueueTimeout
from agentrm.limits.account import BudgetStatistics
from agentrm.limits.errors import BudgetExceeded


class Caller:
    """Asks and remembers what it is told."""

    def __init__(self, rm: agentrm.ResourceManager, **asked: Any) -> None:
        self.told: list[BaseException | None] = []
        self.lease = rm.lease(agent="a", **asked)

    def ask(self) -> Caller:
        self.lease.acquire_then(self.told.append)
        return self


def manager(**budget: Any) -> tuple[agentrm.ResourceManager, agentrm.VirtualClock]:
    clock = agentrm.VirtualClock()
    return agentrm.ResourceManager(clock=clock, budgets={"agent.a": budget}, pools={"default": {"lanes": 2}}), clock


def budget_of(rm: agentrm.ResourceManager) -> BudgetStatistics:
    return rm.statistics().budgets["agent.a"]


def test_a_call_within_its_budget_is_told_at_once_and_charged_what_it_used() -> None:
    rm, _ = manager(tokens=1000)
    caller = Caller(rm, tokens=600).ask()
    assert caller.told == [None] and budget_of(rm).reserved["tokens"] == 600
    caller.lease.settle(input_tokens=400)
    caller.lease.release()
    assert (budget_of(rm).spent["tokens"], budget_of(rm).reserved["tokens"]) == (400, 0)


def test_a_call_beyond_its_budget_is_refused_where_it_asks() -> None:
    rm, _ = manager(tokens=1000)
    caller = Caller(rm, tokens=1001)
    with pytest.raises(BudgetExceeded):
        caller.ask()
    assert caller.told == [] and budget_of(rm).reserved["tokens"] == 0


def test_a_paced_call_is_told_when_its_pace_lets_it_go() -> None:
    rm, clock = manager(pace=600, burst=100)  # ten tokens a second
    callers = [Caller(rm, tokens=100).ask() for _ in range(2)]
    assert [c.told for c in callers] == [[None], []]
    clock.run_until(9.9)
    assert callers[1].told == []
    clock.run_until(10.1)
    assert callers[1].told == [None] and callers[1].lease.state == "running"


def test_a_paced_call_that_then_finds_no_lane_waits_for_one() -> None:
    rm, clock = manager(pace=600, burst=100)
    holders = [rm.try_lease(agent="b", tokens=1) for _ in range(2)]
    callers = [Caller(rm, tokens=100).ask() for _ in range(2)]
    clock.run_until(10.1)
    assert [c.told for c in callers] == [[], []]
    for holder in holders:
        assert holder is not None
        holder.release()
    assert [c.told for c in callers] == [[None], [None]]


def test_whoever_leaves_while_its_pace_holds_it_is_told_nothing_and_charged_nothing() -> None:
    rm, clock = manager(pace=600, burst=100, tokens=10_000)
    first, second, third = (Caller(rm, tokens=100).ask() for _ in range(3))
    second.lease.release()
    clock.run_until(10.1)
    assert (second.told, third.told) == ([], [None])  # who is behind it moves up
    for caller in (first, third):
        caller.lease.release()
    assert (budget_of(rm).spent["tokens"], budget_of(rm).reserved["tokens"]) == (200, 0)


def test_a_pace_that_takes_longer_than_the_call_may_wait_is_told_as_a_timeout() -> None:
    rm, clock = manager(pace=600, burst=100)
    _, late = Caller(rm, tokens=100).ask(), Caller(rm, tokens=100, wait_max=5).ask()
    clock.run_until(30)
    (error,) = late.told
    assert isinstance(error, QueueTimeout)
    assert budget_of(rm).reserved["tokens"] == 100  # the first one's


def test_closing_the_manager_tells_whoever_waits_for_a_pace() -> None:
    rm, _ = manager(pace=600, burst=100)
    _, waiting = Caller(rm, tokens=100).ask(), Caller(rm, tokens=100).ask()
    rm.close()
    (error,) = waiting.told
    assert isinstance(error, ManagerClosed)
