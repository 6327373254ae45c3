"""Ten thousand tasks and 64 threads that cancel, time out, raise, drop streams and lose their loops: nothing leaks."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from agentrm import AdmissionError, LeaseError, ResourceManager, adapters
from agentrm.core.kernel import KernelConfig
from agentrm.scheduling.events import Event
from tests.scheduling.driver import Scene, assert_next_runs, in_threads, until
from tests.scheduling.replay import Replay

LANES, TASKS, LOOPS, KILLED, THREADS, CALLS = 16, 10_000, 8, 3, 64, 12
PRIORITIES = ("interactive", "subagent", "background")
AMOUNT = 2_000_000_000
CONFIG = {
    "pools": {
        "default": {"lanes": LANES, "limits": [{"tokens": AMOUNT, "per": 86_400, "shape": "rolling"}, {"memory": 10**9}]}
    },
    "waiting": {"max_queued": 100_000},
    "reaper": {"sweep_s": 0.05},
}  # fmt: skip


class Boom(Exception):
    pass


class Storm:
    """The manager, and what happened to the calls."""

    def __init__(self, rm: ResourceManager, rng: random.Random) -> None:
        self.rm, self.rng = rm, rng
        self.ends: dict[str, int] = {}
        self.events: list[Event] = []
        self.subscription = rm.subscribe(self.events.append)

    def ended(self, how: str) -> None:
        self.ends[how] = self.ends.get(how, 0) + 1

    def asked(self, dice: random.Random) -> dict[str, object]:
        return {
            "agent": f"a{dice.randrange(40)}",
            "priority": dice.choice(PRIORITIES),
            "tokens": dice.randrange(1000),
            "memory": dice.randrange(100),
        }

    async def call(self, dice: random.Random) -> None:
        kind = dice.randrange(10)
        asked = self.asked(dice)
        if kind == 0:
            asked["wait_max"] = dice.random() * 0.2
        elif kind == 1:
            asked["run_s"] = 0.001
        try:
            if kind == 2:
                await self.drop_stream(dice)
                return
            async with self.rm.lease(**asked) as lease:  # type: ignore[arg-type]
                lease.refund()
                if kind == 1:
                    await asyncio.sleep(dice.random() * 0.1)
                elif kind == 3:
                    raise Boom
                else:
                    await asyncio.sleep(0)
                    lease.heartbeat()
        except (AdmissionError, LeaseError, Boom) as error:
            self.ended(type(error).__name__)
        else:
            self.ended("fine")

    async def drop_stream(self, dice: random.Random) -> None:
        spec = adapters.CallSpec(agent=f"a{dice.randrange(40)}", priority=dice.choice(PRIORITIES), input_tokens=0)

        async def chunks() -> AsyncIterator[str]:
            for _ in range(5):
                yield ""
                await asyncio.sleep(0)

        async for _ in adapters.astream(self.rm, spec, chunks):
            break
        self.ended("dropped")

    async def crowd(self, many: int, dice: random.Random) -> None:
        tasks = [asyncio.ensure_future(self.call(random.Random(dice.random()))) for _ in range(many)]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        for task in dice.sample(tasks, many // 5):
            task.cancel()
            if dice.random() < 0.1:
                await asyncio.sleep(0)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for x in done:
            assert x is None or isinstance(x, asyncio.CancelledError), x

    def loop_thread(self, killed: bool, seed: float) -> None:
        dice = random.Random(seed)
        loop = asyncio.new_event_loop()
        work = loop.create_task(self.crowd(TASKS // LOOPS, dice))
        work._log_destroy_pending = False  # type: ignore[attr-defined]
        if killed:
            loop.call_later(0.05 + dice.random() * 0.3, loop.stop)
            loop.run_forever()
            loop.close()
        else:
            loop.run_until_complete(work)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        self.ended("loop")

    def plain_thread(self, seed: float) -> None:
        dice = random.Random(seed)
        pause = threading.Event()
        for _ in range(CALLS):
            kind = dice.randrange(6)
            asked = self.asked(dice)
            if kind == 0:
                asked["wait_max"] = dice.random() * 0.05
            try:
                if kind == 1:
                    stream = adapters.stream(
                        self.rm, adapters.CallSpec(agent="s", input_tokens=0), lambda: iter(["", "", ""])
                    )
                    next(stream)
                    del stream
                    continue
                if kind == 2:
                    asked["run_s"] = 0.001
                with self.rm.lease(**asked) as lease:  # type: ignore[arg-type]
                    lease.refund()
                    if kind == 2:
                        pause.wait(dice.random() * 0.1)
                    elif kind == 3:
                        raise Boom
            except (AdmissionError, LeaseError, Boom) as error:
                self.ended(type(error).__name__)
            else:
                self.ended("fine")
        self.ended("thread")


def test_ten_thousand_tasks_and_64_threads_leave_nothing_behind(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrm.scheduling.routing.KernelConfig", functools.partial(KernelConfig, events=1 << 18))
    rm = ResourceManager(**CONFIG)
    storm = Storm(rm, rng)
    threads = in_threads(
        *(lambda k=i < KILLED, s=rng.random(): storm.loop_thread(k, s) for i in range(LOOPS)),
        *(lambda s=rng.random(): storm.plain_thread(s) for _ in range(THREADS)),
    )
    for thread in threads:
        thread.join(60)
    assert storm.ends.pop("loop") == LOOPS and storm.ends.pop("thread") == THREADS, (
        "a loop or thread never came to its end"
    )
    gc.collect()
    until(lambda: rm.statistics().running == 0 and not any(x.zombies for x in rm.statistics().pools.values()))
    print(storm.ends)
    assert {"fine", "Boom", "QueueTimeout", "RunTimeout", "dropped"} <= set(storm.ends)

    rm.kernel.check()
    # Waiters of a dead loop are passed over when their turn comes, which is now.
    assert rm.lease(agent="last", wait_max=30, priority="background").acquire().state == "running"
    for lease in list(rm.gate.leases.values()):
        lease.refund()
        lease.release()
    assert rm.statistics().waiting == 0 and not rm.gate.queued and not rm.gate.leases and not rm.gate.waiters
    rm.kernel.check()
    tokens, memory = rm.statistics().limits.values()
    assert (tokens.level, memory.level) == (AMOUNT - charged(storm), 10**9)
    assert_next_runs(rm)

    rm.gate.publish()
    assert storm.subscription.lost == 0
    replay = Replay(LANES, zombies=LANES).read(storm.events)
    replay.over()
    assert replay.granted > 5000


def charged(storm: Storm) -> int:
    """Only dropped streams are charged: by what they had brought, and those that a dying loop took along by the
    estimate."""
    tokens = storm.rm.statistics().limits["pools.default.limits[0]"].level
    dropped = storm.ends["dropped"] + THREADS * CALLS
    used = AMOUNT - tokens
    assert 0 <= used <= dropped * 10, f"{used} tokens for {dropped} streams of nothing"
    return used


@pytest.mark.parametrize("round_", range(4))
def test_every_grant_obeys_the_order_under_limits(seed: int, round_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the virtual clock, with a token limit that binds: level, then arrival of equals, and bounded backfill."""
    rng = random.Random(seed + round_)
    monkeypatch.setattr(
        "agentrm.scheduling.routing.KernelConfig", functools.partial(KernelConfig, events=1 << 16, age_s=0)
    )
    scene = Scene(
        pools={"default": {"lanes": 4, "limits": [{"tokens": 1000, "per": 10}, {"requests": 40, "per": 7}]}},
        scheduling={"quanta_s": [float("inf")] * 3, "quanta_tokens": [float("inf")] * 3},
        waiting={"backfill": {"passes": 5, "max_s": 3}},
    )

    async def some(i: int) -> None:
        await asyncio.sleep(rng.random() * 200)
        asked = {"tokens": rng.choice((10, 50, 300, 900)), "priority": rng.choice(PRIORITIES)}
        if rng.random() < 0.1:
            asked["wait_max"] = rng.random() * 20
        if rng.random() < 0.1:
            asked["run_s"] = 0.5
        try:
            async with scene.rm.lease(agent="one", **asked) as lease:  # type: ignore[arg-type]
                await asyncio.sleep(rng.random() * 2)
                if rng.random() < 0.5:
                    lease.settle(output_tokens=rng.randrange(1, 1 + 2 * asked["tokens"]))  # type: ignore[operator]
                if rng.random() < 0.1:
                    raise Boom
        except (AdmissionError, LeaseError, Boom):
            pass

    async def cancelled(i: int) -> None:
        task = asyncio.ensure_future(some(i))
        await asyncio.sleep(rng.random() * 400)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    scene.run_all(*(some(i) for i in range(300)), *(cancelled(i) for i in range(100)))
    replay = Replay(4, passes=5, seconds=3).read(scene.rm.events())
    replay.over()
    replay.bounded()
    assert replay.granted > 200 and replay.passed
    scene.at_rest()


def test_threads_that_only_try_never_exceed_the_lanes(rng: random.Random) -> None:
    rm = ResourceManager(pools={"default": {"lanes": 5}})
    lock, inside, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(300):
            lease = rm.try_lease()
            if lease is None:
                continue
            with lease:
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    for thread in in_threads(*[work] * 16):
        thread.join(30)
    assert 1 <= most <= 5
    assert_next_runs(rm)


def test_many_readers_beside_many_writers() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 4}})
    over, seen, broken = threading.Event(), 0, []

    def read() -> None:
        nonlocal seen
        while not over.is_set():
            try:
                statistics, snapshot = rm.statistics(), rm.snapshot()
                assert statistics.pools["default"].in_use <= 4 and len(snapshot.holding) <= 4 + 4
                list(rm.events(rm.kernel.event_head() - 100))
                seen += 1
            except BaseException as error:  # noqa: BLE001
                broken.append(error)
                return

    def write(i: int) -> Iterator[None] | None:
        for _ in range(200):
            with rm.lease(agent=f"a{i}"):
                pass
        return None

    readers = in_threads(*[read] * 3)
    for thread in in_threads(*(lambda i=i: write(i) for i in range(8))):
        thread.join(60)
    over.set()
    for thread in readers:
        thread.join(10)
    assert not broken and seen
    assert_next_runs(rm)
