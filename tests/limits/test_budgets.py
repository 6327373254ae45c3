"""Budgets: what is reserved, what is spent, who counts to whom, and that callers side by side never overshoot."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import agentrm
from agentrm.limits.account import BudgetStatistics
from agentrm.limits.errors import BudgetExceeded, OutputLimit, PriceUnknown
from tests.scheduling.driver import Scene, in_threads, until

PRICES = {"m": {"input": 10.0, "output": 50.0, "cached": 1.0, "cache_write": 12.5}}


def of(rm: agentrm.ResourceManager, name: str) -> BudgetStatistics:
    return rm.statistics().budgets[name]


def spend(rm: agentrm.ResourceManager, tokens: int, **asked: Any) -> None:
    with rm.lease(tokens=tokens, **asked) as lease:
        lease.settle(input_tokens=tokens)


def test_without_budgets_nothing_is_checked() -> None:
    with agentrm.ResourceManager() as rm:
        spend(rm, 1_000_000)
        assert rm.gate.budgets is None
        assert rm.statistics().budgets == {}


def test_a_budget_of_tokens_stops_at_its_limit_and_says_so() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 1000}}) as rm:
        spend(rm, 900, agent="a")
        with pytest.raises(BudgetExceeded) as caught:
            spend(rm, 101, agent="a")
        error = caught.value
        assert (error.budget, error.kind, error.spent, error.limit, error.asked) == (
            "agent.a",
            "tokens",
            900,
            1000,
            101,
        )
        assert error.renews_in_s is None and not error.is_retryable
        assert "agent.a" in str(error) and "900" in str(error) and "1000" in str(error)
        spend(rm, 100, agent="a")
        spend(rm, 10_000, agent="b")
        assert of(rm, "agent.a").spent["tokens"] == 1000
        assert of(rm, "agent.a").refused == 1


def test_calls_are_counted_for_every_kind_of_call() -> None:
    with agentrm.ResourceManager(budgets={"tenant.t": {"calls": 2}}) as rm:
        spend(rm, 1, tenant="t")
        with rm.lease(tenant="t", kind="tool", tool="search"):
            pass
        with pytest.raises(BudgetExceeded, match="2 calls"):
            spend(rm, 1, tenant="t")


def test_a_budget_renews_when_its_window_is_over() -> None:
    scene = Scene(budgets={"session.s": {"tokens": 100, "per": 60}})
    spend(scene.rm, 100, session="s")
    scene.clock.advance(20)
    with pytest.raises(BudgetExceeded) as caught:
        spend(scene.rm, 1, session="s")
    assert caught.value.renews_in_s == caught.value.retry_after == pytest.approx(40)
    assert caught.value.is_retryable
    scene.clock.advance(40)
    spend(scene.rm, 100, session="s")


def test_a_call_counts_to_the_window_in_which_it_was_admitted() -> None:
    scene = Scene(budgets={"agent.a": {"tokens": 100, "per": 60}})
    lease = scene.rm.lease(agent="a", tokens=80).acquire()
    scene.clock.advance(61)
    lease.settle(input_tokens=100)
    lease.release()
    assert of(scene.rm, "agent.a").spent["tokens"] == 0
    assert of(scene.rm, "agent.a").reserved["tokens"] == 0


def test_the_estimate_is_reserved_and_the_real_use_is_charged() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 1000}}) as rm:
        lease = rm.lease(agent="a", input_tokens=300, max_output_tokens=500).acquire()
        assert of(rm, "agent.a").reserved["tokens"] == 800
        with pytest.raises(BudgetExceeded) as caught:
            spend(rm, 300, agent="a")
        assert caught.value.reserved == 800 and caught.value.is_retryable
        lease.settle(input_tokens=310, output_tokens=40)
        lease.release()
        assert of(rm, "agent.a").reserved["tokens"] == 0
        assert of(rm, "agent.a").spent["tokens"] == 350
        spend(rm, 600, agent="a")


def test_what_was_not_used_goes_back_on_every_way_out() -> None:
    scene = Scene(budgets={"agent.a": {"tokens": 100, "calls": 10}}, pools={"default": {"lanes": 1}})
    rm = scene.rm

    def untouched() -> bool:
        found = of(rm, "agent.a")
        return found.spent["tokens"] == found.spent["calls"] == found.reserved["tokens"] == found.reserved["calls"] == 0

    with rm.lease(agent="a", tokens=100) as lease:
        lease.refund()
    assert untouched()

    holder = rm.lease(agent="holder", tokens=1).acquire()
    assert rm.try_lease(agent="a", tokens=100) is None
    assert untouched()

    async def leaves_the_queue() -> None:
        waiting = asyncio.ensure_future(scene.call("a", tokens=100))
        await asyncio.sleep(1)
        assert of(rm, "agent.a").reserved["tokens"] == 100
        waiting.cancel()
        await asyncio.sleep(1)
        assert untouched()
        with pytest.raises(agentrm.QueueTimeout):
            await scene.call("a", tokens=100, wait_max=3)
        assert untouched()
        closing = asyncio.ensure_future(scene.call("a", tokens=100))
        await asyncio.sleep(1)
        await rm.aclose()
        with pytest.raises(agentrm.ManagerClosed):
            await closing

    scene.run(leaves_the_queue)
    holder.release()
    assert untouched()


def test_what_a_provider_turned_away_is_not_charged() -> None:
    class RateLimitError(Exception):
        status_code = 429
        headers = {"retry-after": "1"}

    RateLimitError.__module__ = "openai"
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 100, "calls": 5}}) as rm:
        lease = rm.lease(agent="a", tokens=100).acquire()
        problem = lease.fail(RateLimitError("slow down"))
        assert problem is not None and problem.kind == "rate"
        assert of(rm, "agent.a").spent == {"calls": 0, "tokens": 0, "usd": 0.0, "wall_s": 0.0}


def test_a_failed_call_is_charged_its_input() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 100, "usd": 1}}, prices=PRICES) as rm:
        with pytest.raises(ValueError), rm.lease(agent="a", model="m", input_tokens=30, max_output_tokens=60):
            raise ValueError
        found = of(rm, "agent.a")
        assert found.spent["tokens"] == 30 and found.estimated == 1
        assert found.reserved["tokens"] == 0 and found.reserved["usd"] == pytest.approx(0)


def test_a_reaped_call_is_charged_what_it_reserved() -> None:
    scene = Scene(budgets={"agent.a": {"tokens": 100}}, reaper={"run_s": 5})
    (error,) = scene.run_all(scene.call("a", 100, tokens=70))
    assert isinstance(error, agentrm.RunTimeout)
    found = of(scene.rm, "agent.a")
    assert (found.spent["tokens"], found.reserved["tokens"]) == (70, 0)


def test_leaving_without_settling_charges_the_estimate() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 10_000}}) as rm:
        with rm.lease(agent="a", tokens=70):
            pass
        with rm.lease(agent="a"):  # of unknown size: a guess, never nothing
            pass
        found = of(rm, "agent.a")
        assert found.spent["tokens"] == 70 + 1000 and found.estimated == 2


def test_a_call_of_unknown_size_takes_what_is_left_and_no_more() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 500}}) as rm:
        lease = rm.lease(agent="a").acquire()
        assert of(rm, "agent.a").reserved["tokens"] == 500
        with pytest.raises(BudgetExceeded):
            rm.lease(agent="a").acquire()
        lease.settle(input_tokens=20, output_tokens=20)
        lease.release()
        lease = rm.lease(agent="a").acquire()
        assert of(rm, "agent.a").reserved["tokens"] == 40  # as the one before it
        lease.release()


def test_a_nested_call_counts_to_everyone_above_it() -> None:
    budgets = {
        "agent.parent": {"tokens": 1000, "calls": 10},
        "session.s": {"tokens": 5000},
        "agent.child": {"tokens": 5000},
    }
    with agentrm.ResourceManager(budgets=budgets) as rm:
        with rm.lease(agent="parent", session="s", kind="tool", tool="delegate"):
            spend(rm, 600, agent="child", session="other")
            with rm.lease(agent="child", kind="tool", tool="delegate"):
                spend(rm, 300, agent="grandchild")
                with pytest.raises(BudgetExceeded, match="agent.parent"):
                    spend(rm, 101, agent="grandchild")
        assert of(rm, "agent.parent").spent["tokens"] == 900
        assert of(rm, "agent.parent").spent["calls"] == 4
        assert of(rm, "agent.child").spent["tokens"] == 900
        assert of(rm, "session.s").spent["tokens"] == 900


def test_a_call_refused_by_one_budget_takes_nothing_of_the_others() -> None:
    with agentrm.ResourceManager(budgets={"tenant.t": {"tokens": 1000}, "agent.a": {"tokens": 10}}) as rm:
        with pytest.raises(BudgetExceeded, match="agent.a"):
            spend(rm, 11, agent="a", tenant="t")
        assert of(rm, "tenant.t").reserved["tokens"] == 0


def test_a_pattern_gives_each_its_own_budget() -> None:
    with agentrm.ResourceManager(budgets={"session.*": {"tokens": 100}, "session.big": {"tokens": 1000}}) as rm:
        spend(rm, 100, session="one")
        spend(rm, 100, session="two")
        spend(rm, 1000, session="big")
        with pytest.raises(BudgetExceeded, match="session.one"):
            spend(rm, 1, session="one")
        assert set(rm.statistics().budgets) == {"session.one", "session.two", "session.big"}


def test_seconds_are_counted_once_for_nested_calls() -> None:
    scene = Scene(budgets={"agent.a": {"wall_s": 100}})
    with scene.rm.lease(agent="a", kind="tool"):
        scene.clock.advance(10)
        with scene.rm.lease(agent="b", tokens=1):
            scene.clock.advance(10)
    assert of(scene.rm, "agent.a").spent["wall_s"] == pytest.approx(20)


def test_a_call_may_not_run_for_longer_than_its_budget_has_left() -> None:
    scene = Scene(budgets={"agent.a": {"wall_s": 30}})
    (error,) = scene.run_all(scene.call("a", 1000))
    assert isinstance(error, agentrm.RunTimeout)
    assert scene.now <= 32
    with pytest.raises(BudgetExceeded, match="30.* s of running calls"):
        scene.rm.lease(agent="a").acquire()


def test_money_is_charged_by_the_kind_of_token() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"usd": 1}}, prices=PRICES) as rm:
        with rm.lease(agent="a", model="m", input_tokens=1000, max_output_tokens=100) as lease:
            assert of(rm, "agent.a").reserved["usd"] == pytest.approx((1000 * 12.5 + 100 * 50) / 1e6)
            lease.settle(1000, 100, cached_tokens=600, written_tokens=100)
        cost = (300 * 10 + 600 * 1 + 100 * 12.5 + 100 * 50) / 1e6
        assert lease.cost_usd == pytest.approx(cost)
        assert of(rm, "agent.a").spent["usd"] == pytest.approx(cost)


def test_an_unknown_price_is_refused_only_where_money_is_limited() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"usd": 1}, "agent.b": {"tokens": 100}}, prices=PRICES) as rm:
        with pytest.raises(PriceUnknown, match="'mm'") as caught:
            spend(rm, 1, agent="a", model="mm")
        assert caught.value.model == "mm" and caught.value.budget == "agent.a"
        spend(rm, 1, agent="b", model="mm")
        assert of(rm, "agent.b").spent["usd"] == "unknown"
        with rm.lease(agent="a", kind="tool"):  # a tool has no price
            pass


def test_affords_reserves_nothing() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 100}}) as rm:
        assert rm.affords(agent="a", tokens=100)
        assert not rm.affords(agent="a", tokens=101)
        assert of(rm, "agent.a").reserved["tokens"] == 0
        assert of(rm, "agent.a").refused == 0


@pytest.mark.parametrize("kind", ["tokens", "usd", "calls", "wall_s"])
def test_a_hundred_callers_side_by_side_never_overshoot(kind: str, seed: int) -> None:
    limits: dict[str, float] = {"tokens": 2000, "usd": 2000 * 50 / 1e6, "calls": 20, "wall_s": 20}
    scene = Scene(
        seed=seed, budgets={"tenant.t": {kind: limits[kind]}}, prices=PRICES, pools={"default": {"lanes": 100}}
    )
    rng = random.Random(seed)
    used: list[tuple[int, float]] = []

    async def caller(number: int) -> None:
        for _ in range(5):
            tokens, seconds = rng.randint(10, 100), rng.uniform(0.2, 1.0)
            try:
                async with scene.rm.lease(
                    tenant="t", agent=f"a{number}", model="m", input_tokens=0, max_output_tokens=100, run_s=1.0
                ) as lease:
                    await asyncio.sleep(seconds)
                    lease.settle(output_tokens=tokens)
                used.append((tokens, seconds))
            except BudgetExceeded:
                await asyncio.sleep(rng.uniform(0.1, 2.0))

    scene.run_all(*(caller(number) for number in range(100)))
    tokens, seconds = sum(t for t, _ in used), sum(s for _, s in used)
    spent = {"tokens": tokens, "usd": tokens * 50 / 1e6, "calls": len(used), "wall_s": seconds}[kind]
    assert spent <= limits[kind] * (1 + 1e-9)
    assert spent >= limits[kind] * 0.9  # it is used, too
    found = of(scene.rm, "tenant.t")
    assert found.spent[kind] == pytest.approx(spent, rel=0.02)
    assert found.reserved[kind] == pytest.approx(0, abs=1e-9)


def test_a_hundred_threads_never_overshoot() -> None:
    rm = agentrm.ResourceManager(budgets={"tenant.t": {"tokens": 5000}}, pools={"default": {"lanes": 50}})
    granted: list[int] = []
    start = threading.Barrier(100)

    def work() -> None:
        start.wait()
        for _ in range(3):
            try:
                with rm.lease(tenant="t", tokens=100) as lease:
                    lease.settle(output_tokens=100)
                granted.append(1)
            except BudgetExceeded:
                pass

    threads = in_threads(*[work] * 100)
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert len(granted) == 50
    assert of(rm, "tenant.t").spent["tokens"] == 5000
    assert of(rm, "tenant.t").reserved["tokens"] == 0


# --- replies that grow ---


def test_a_reply_is_stopped_where_its_budget_ends() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 200}}) as rm:
        lease = rm.lease(agent="a", input_tokens=50).acquire()
        with pytest.raises(OutputLimit) as caught, lease:
            for produced in range(10, 1000, 10):
                lease.heartbeat(output_tokens=produced)
        assert (caught.value.limit, caught.value.produced, caught.value.budget) == (150, 160, "agent.a")
        assert of(rm, "agent.a").spent["tokens"] == 50 + 160


def test_a_reply_is_stopped_at_its_own_limit_without_any_budget() -> None:
    with agentrm.ResourceManager() as rm:
        with pytest.raises(OutputLimit) as caught, rm.lease(input_tokens=5, max_output_tokens=100) as lease:
            lease.heartbeat(output_tokens=100)
            lease.heartbeat(output_tokens=140, estimated=True)
            lease.heartbeat(output_tokens=101)
        assert (caught.value.limit, caught.value.budget) == (100, None)
        assert rm.statistics().running == 0
