"""Whatever happens to calls, nothing stays reserved, nobody stays delayed, and what is spent is what was charged."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

import agentrm
from agentrm.limits.errors import BudgetExceeded
from tests.scheduling.driver import Scene, in_threads, until

BUDGETS = {
    "tenant.t": {"tokens": 40_000, "calls": 500, "wall_s": 5000, "usd": 10, "per": 40},
    "agent.*": {"tokens": 5000, "pace": 20_000, "burst": 200},
    "session.s": {"calls": 100},
}
PRICES = {"*": {"input": 3, "output": 9}}


@pytest.mark.parametrize("part", range(5))
def test_a_storm_of_cancelled_failed_reaped_and_nested_calls_leaves_nothing_behind(part: int, seed: int) -> None:
    rng = random.Random(f"{seed}/{part}")
    scene = Scene(
        seed=seed, budgets=BUDGETS, prices=PRICES, pools={"default": {"lanes": 4}}, reaper={"run_s": 8, "idle_s": 8}
    )
    rm = scene.rm

    async def one(depth: int) -> None:
        asked = rng.choice([{"tokens": rng.randint(1, 400)}, {"input_tokens": rng.randint(1, 200)}, {}])
        lease = rm.lease(
            tenant="t", agent=f"a{rng.randint(0, 4)}", model="m", session=rng.choice(["s", "other"]),
            wait_max=rng.choice([None, 0, rng.uniform(0, 20)]), **asked,
        )  # fmt: skip
        async with lease:
            await asyncio.sleep(rng.choice([0, 0.1, 2, 30]) * rng.random())
            if depth and rng.random() < 0.3:
                await one(depth - 1)
            match_ = rng.randrange(5)
            if match_ == 0:
                raise ValueError
            if match_ == 1:
                lease.refund()
            elif match_ < 4:
                lease.settle(rng.randint(0, 300), rng.randint(0, 300))

    async def caller() -> None:
        await asyncio.sleep(rng.uniform(0, 60))
        task = asyncio.ensure_future(one(2))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 10))
            task.cancel()
        try:
            await task
        except (agentrm.AgentRMError, ValueError, asyncio.CancelledError):
            pass

    scene.run_all(*(caller() for _ in range(150)))
    scene.clock.advance(100)  # the reaper's last look
    for name, found in rm.statistics().budgets.items():
        assert all(amount == pytest.approx(0, abs=1e-6) for amount in found.reserved.values()), (name, found)
        assert found.delayed_now == 0, name
        assert all(not isinstance(amount, str) and amount >= 0 for amount in found.spent.values()), (name, found)
    assert not rm.gate.leases and not rm.gate.queued and not rm.gate.waiters
    rm.kernel.check()


def test_threads_that_wait_for_one_pace_all_go_in_the_end() -> None:
    rm = agentrm.ResourceManager(
        budgets={"tenant.t": {"pace": 6_000_000, "tokens": 3000}}, pools={"default": {"lanes": 8}}
    )
    done: list[str] = []

    def work() -> None:
        for _ in range(10):
            try:
                with rm.lease(tenant="t", tokens=100) as lease:
                    lease.settle(output_tokens=100)
                done.append("ran")
            except BudgetExceeded:
                done.append("refused")

    threads = in_threads(*[work] * 10)
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert (done.count("ran"), done.count("refused")) == (30, 70)
    assert rm.statistics().budgets["tenant.t"].delayed_now == 0


def test_a_paced_call_whose_loop_died_holds_nobody_up() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"pace": 60_000}}) as rm:
        with rm.lease(agent="a", tokens=100) as lease:  # the next may go in 0.1 s
            lease.settle(output_tokens=100)

        async def waits() -> None:
            async with rm.lease(agent="a", tokens=10_000):
                pass

        loop = asyncio.new_event_loop()
        task = loop.create_task(waits())
        loop.run_until_complete(asyncio.sleep(0))
        assert rm.statistics().budgets["agent.a"].delayed_now == 1
        loop.close()
        with rm.lease(agent="a", tokens=1, wait_max=30):  # not the 10 s that the dead one would have taken
            pass
        found = rm.statistics().budgets["agent.a"]
        assert (found.delayed_now, found.reserved["tokens"]) == (0, 0)
        del task
        gc.collect()
