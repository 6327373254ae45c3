"""Anything at any time: random managers, random calls, random misuse. Nothing leaks, nothing hangs, every invariant
holds."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from typing import Any

import pytest

from agentrm import AgentRMError, ConfigError, ResourceManager
from tests.reports.stub import Refused
from tests.scheduling.driver import Scene, VirtualLoop, in_threads

ROUNDS = 40


class Boom(Exception):
    pass


def random_sections(dice: random.Random) -> dict[str, Any]:
    def limit() -> dict[str, Any]:
        kind = dice.choice(("requests", "tokens", "tokens", "memory"))
        if kind == "memory":
            return {"memory": dice.choice((100, 1000))}
        amount = dice.choice((1, 5, 40)) * (1 if kind == "requests" else 100)
        shape = dice.choice(("rolling", "bucket"))
        more = {"burst": max(1, amount // dice.choice((1, 2, 5)))} if shape == "bucket" and dice.random() < 0.5 else {}
        return {kind: amount, "per": dice.choice((0.5, 3, 20)), "shape": shape, **more}

    def pool(account: str | None) -> dict[str, Any]:
        return {
            "lanes": dice.choice((1, 1, 2, 5)),
            "limits": [limit() for _ in range(dice.randrange(3))],
            "oversize": dice.choice(("refuse", "debt")),
            **({"account": account} if account else {}),
            **({"zombies": dice.randrange(3)} if dice.random() < 0.5 else {}),
        }

    accounts = {"x": {"limits": [limit() for _ in range(dice.randrange(2))]}}
    return {
        "accounts": accounts,
        "pools": {name: pool(dice.choice((None, "x"))) for name in ("default", "a", "b")},
        "tenants": {"t1": {"weight": dice.choice((0.5, 1, 3))}},
        "scheduling": {
            "policy": dice.choice(("mlfq", "fifo", "rr", "priority", "drf")),
            "boost_s": dice.choice((2, 60)),
        },
        "waiting": {"backfill": {"passes": dice.choice((0, 3, 16)), "max_s": dice.choice((0.1, 2))}},
        "reaper": {
            "sweep_s": dice.choice((0.1, 1)),
            "idle_s": dice.choice(("auto", 5)),
            "run_s": dice.choice((8, 600)),
        },
    }


class Chaos:
    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self.scene, self.rm, self.dice = scene, scene.rm, dice
        self.errors: dict[str, int] = {}
        self.done = 0
        self.abandoned: weakref.WeakSet[Any] = weakref.WeakSet()  # a lost loop's leases must be collected

    def asked(self) -> dict[str, Any]:
        dice = self.dice
        asked: dict[str, Any] = {
            "agent": f"a{dice.randrange(6)}", "tenant": dice.choice((None, "t1", "t2")), "pool": dice.choice(("default", "a", "b")),
            "priority": dice.choice((None, "interactive", "subagent", "background")), "model": dice.choice((None, "m1", "m2")),
            "resumed": dice.random() < 0.1,
        }  # fmt: skip
        if dice.random() < 0.8:
            asked["tokens"] = dice.choice((0, 1, 30, 99, 100, 500))
        if dice.random() < 0.3:
            asked["memory"] = dice.choice((1, 99, 1000))
        if dice.random() < 0.3:
            asked["wait_max"] = dice.choice((0, 0.5, 5))
        if dice.random() < 0.2:
            asked["run_s"] = dice.choice((0.01, 1))
        if dice.random() < 0.2:
            asked["idle_s"] = dice.choice((0.01, 1))
        if dice.random() < 0.1:
            asked["parent"] = None
        return asked

    async def call(self, depth: int = 0) -> None:
        dice = self.dice
        try:
            lease = self.rm.lease(**self.asked())
            async with lease:
                for _ in range(dice.randrange(4)):
                    await self.within(lease, depth)
        except (AgentRMError, Boom, Refused) as error:
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
        self.done += 1

    async def within(self, lease: Any, depth: int) -> None:
        dice = self.dice
        what = dice.randrange(14)
        if what < 4:
            await asyncio.sleep(dice.random() * 3)
        elif what == 4:
            lease.heartbeat()
        elif what == 5:
            lease.settle(output_tokens=dice.randrange(300))
        elif what == 6:
            lease.refund()
        elif what == 7:
            raise Boom
        elif what == 8:
            error = Refused(*dice.choice(((429,), (503,), (500,))), retry_after=dice.choice((None, 0, 2)))
            lease.fail(error)
            raise error
        elif what == 9:
            lease.release()
        elif what == 10:
            lease.abandon()
            self.abandoned.add(lease)
        elif what == 11:
            with lease.guard():
                await asyncio.sleep(dice.random())
        elif what == 12 and (other := self.rm.try_lease(**self.asked())) is not None:
            with other:
                pass
        elif depth < 3 and lease not in self.abandoned:  # nobody ends one that waits for what it holds itself
            await asyncio.gather(*(self.call(depth + 1) for _ in range(dice.randrange(1, 4))))

    async def some(self, many: int) -> None:
        tasks = []
        for _ in range(many):
            task = asyncio.ensure_future(self.call())
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            tasks.append(task)
            if self.dice.random() < 0.5:
                await asyncio.sleep(self.dice.random())
            if self.dice.random() < 0.2:
                self.dice.choice(tasks).cancel()
            if self.dice.random() < 0.05:
                self.rm.reopen()
            self.rm.kernel.check()
        for x in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(x, BaseException) and not isinstance(x, asyncio.CancelledError):
                raise x

    def lose_a_loop(self) -> None:
        loop = VirtualLoop(self.scene.clock)
        tasks = [loop.create_task(self.call()) for _ in range(5)]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(self.dice.random()))
        loop.close()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_chaos_ends_in_order(seed: int, round_: int) -> None:
    dice = random.Random(seed * 1000 + round_)
    scene = Scene(seed=round_, **random_sections(dice))
    chaos = Chaos(scene, dice)
    if dice.random() < 0.3:
        chaos.lose_a_loop()
        gc.collect()
    scene.run(lambda: chaos.some(60), longest_s=20_000)
    scene.clock.advance(2000)
    gc.collect()
    assert chaos.done >= 30
    scene.rm.kernel.check()
    for name, pool in scene.rm.statistics().pools.items():
        assert (pool.in_use, pool.waiting, pool.zombies) == (0, 0, 0), (name, pool)
    for key, limit in scene.rm.statistics().limits.items():
        assert limit.level == limit.capacity, (key, limit)
    assert not scene.rm.gate.leases and not scene.rm.gate.queued and not scene.rm.gate.waiters
    scene.rm.reopen()

    async def next_runs() -> None:
        for pool in ("default", "a", "b"):
            await asyncio.wait_for(scene.call("next", 0, pool=pool, tokens=0), 100)

    scene.run(next_runs)


def test_rates_wake_threads_and_loops_of_a_real_clock() -> None:
    """A lost wake-up would leave one of them asleep for ever; how fast they are does not matter."""
    rm = ResourceManager(
        pools={"default": {"lanes": 7, "limits": [{"requests": 100, "per": 0.1}, {"tokens": 2000, "per": 0.1}]}}
    )
    done: list[int] = []

    def plain(i: int) -> None:
        for _ in range(20):
            with rm.lease(agent=f"t{i}", tokens=10):
                done.append(1)

    def loop(i: int) -> None:
        async def one(k: int) -> None:
            async with rm.lease(agent=f"l{i}.{k % 4}", tokens=30):
                await asyncio.sleep(0)
                done.append(1)

        async def all_() -> None:
            await asyncio.gather(*(one(k) for k in range(150)))

        asyncio.run(all_())

    threads = in_threads(*(lambda i=i: plain(i) for i in range(20)), *(lambda i=i: loop(i) for i in range(3)))
    for thread in threads:
        thread.join(60)
    assert len(done) == 20 * 20 + 3 * 150
    rm.kernel.check()


def test_the_collector_may_run_anywhere() -> None:
    """Collected coroutines give up their places; with the collector at its most eager that happens inside of every
    table."""
    rm = ResourceManager(pools={"default": {"lanes": 2}})
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    over = threading.Event()
    finished: list[int] = []

    def churn(i: int) -> None:
        for k in range(60):
            with rm.lease(agent=f"t{i}", wait_max=30):
                loop = asyncio.new_event_loop()
                task = loop.create_task(rm.lease(agent=f"dead{k}", parent=None, wait_max=20).acquire_async())
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                cycle: list[Any] = [task]
                cycle.append(cycle)
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
                del task, cycle, loop
        finished.append(i)

    try:
        threads = in_threads(*(lambda i=i: churn(i) for i in range(4)))
        for thread in threads:
            thread.join(90)
    finally:
        over.set()
        gc.set_threshold(*threshold)
    assert sorted(finished) == [0, 1, 2, 3]
    gc.collect()
    rm.kernel.check()
    with rm.lease(agent="next", wait_max=30):
        pass


def test_a_parent_of_another_manager_is_refused() -> None:
    one, two = ResourceManager(), ResourceManager()
    with one.lease() as lease, pytest.raises(ConfigError, match="parent"):
        two.lease(parent=lease)


@pytest.mark.parametrize(
    ("key", "value"), [("agent", 7), ("tenant", b"x"), ("pool", 3), ("model", 5), ("kind", 1), ("session", 4)]
)
def test_names_are_text(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        ResourceManager().lease(**{key: value})


def test_using_a_lease_that_never_ran_or_is_over_does_no_harm() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    for acquired in (False, True):
        lease = scene.rm.lease()
        if acquired:
            lease.acquire()
        lease.release()
        for use in (
            lease.heartbeat,
            lease.release,
            lease.refund,
            lease.abandon,
            lambda: lease.fail(ValueError()),
            lease.settle,
        ):
            use()
        lease.__exit__(None, None, None)
        assert lease.held_s >= 0 and lease.waited_s >= 0 and repr(lease)
    scene.at_rest()


def test_many_managers_live_side_by_side() -> None:
    managers = [ResourceManager(pools={"default": {"lanes": 1}}, name=str(i)) for i in range(50)]
    leases = [rm.lease(parent=None).acquire() for rm in managers]
    assert all(rm.statistics().running == 1 for rm in managers)
    for lease in leases:
        lease.release()
    assert all(rm.close().clean for rm in managers)
