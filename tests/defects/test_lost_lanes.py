"""Defects found in other schedulers: lanes that are lost, waiters that are never woken, two where one may be.

Each test looks at whether the next waiter runs, not only at whether the count is right.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrm import ConfigError, ManagerClosed, QueueFull, QueueTimeout, ResourceManager, adapters
from agentrm.adapters import CallSpec
from tests.reports.stub import SILENCE, Provider, Refused
from tests.scheduling.driver import Scene, in_threads, until

ONE = {"default": {"lanes": 1}}


@pytest.mark.parametrize("how", ["raise", "cancel", "refusal", "fail"])
def test_a_holder_that_raises_or_is_cancelled_wakes_the_next(how: str) -> None:
    """LOCO 1: the wake-up stood after the `finally`; of five callers four slept for ever."""
    scene = Scene(pools=ONE)

    async def first() -> None:
        async with scene.rm.lease(agent="first") as lease:
            await asyncio.sleep(1)
            if how == "fail":
                lease.fail(Refused(500))
            if how == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            raise Refused(500) if how == "refusal" else ValueError

    results = scene.run_all(first(), *(scene.call(f"c{i}", 1) for i in range(4)))
    assert results[1:] == ["c0", "c1", "c2", "c3"] and isinstance(results[0], BaseException)
    assert scene.started == [(f"c{i}", i + 1) for i in range(4)]
    scene.at_rest()


def test_a_holder_that_raises_in_a_thread_wakes_the_next() -> None:
    rm = ResourceManager(pools=ONE)
    held, ran = rm.lease().acquire(), []

    def bad(i: int) -> None:
        with pytest.raises(ValueError, match="bad"), rm.lease(agent=f"b{i}"):
            ran.append(i)
            raise ValueError("bad")

    threads = in_threads(*(lambda i=i: bad(i) for i in range(5)))
    until(lambda: rm.statistics().waiting == 5)
    held.release()
    for thread in threads:
        thread.join(10)
    assert sorted(ran) == list(range(5))


def test_a_time_out_of_one_waiter_lets_no_other_in() -> None:
    """LOCO 2: when one waiter of an agent timed out, another of that agent came in beside the holder."""
    scene = Scene(pools=ONE)
    results = scene.run_all(
        scene.call("holder", 10, agent="a"),
        scene.call("impatient", 1, agent="a", wait_max=2),
        scene.call("patient", 1, agent="a"),
    )
    assert isinstance(results[1], QueueTimeout) and scene.most_inside == 1
    assert scene.started == [("holder", 0), ("patient", 10)]
    scene.at_rest()


def test_shutting_down_admits_nobody_and_leaves_nobody_waiting() -> None:
    """LOCO 3: three bodies ran at capacity 1, and one waiter stayed stuck."""
    scene = Scene(pools=ONE)

    async def all_() -> list[Any]:
        calls = [asyncio.ensure_future(scene.call(f"c{i}", 5)) for i in range(5)]
        await asyncio.sleep(1)
        await scene.rm.aclose(timeout=None)
        return await asyncio.gather(*calls, return_exceptions=True)

    results = scene.run(all_)
    assert results[0] == "c0" and all(isinstance(x, ManagerClosed) for x in results[1:])
    assert scene.order == ["c0"] and scene.now == 5


@pytest.mark.parametrize(
    "asked", [{"pool": "none"}, {"priority": "urgent"}, {"tokens": -1}, {"run_s": 0}, {"agent": 7}, {"tenant": b"x"}]
)
def test_a_refused_request_takes_no_lane(asked: dict[str, Any]) -> None:
    """LOCO 4: an unknown agent raised after the slot was taken."""
    scene = Scene(pools=ONE)
    with pytest.raises((ConfigError, TypeError, AttributeError)):
        scene.rm.lease(**asked).acquire()
    scene.at_rest()


def test_agents_and_tenants_never_named_before_are_served() -> None:
    """LOCO 4, 5: who had not registered first was never granted, even with a free slot."""
    scene = Scene(pools=ONE, tenants={"known": {}})
    scene.run_all(*(scene.call(f"new{i}", 1, tenant=f"unknown{i}") for i in range(3)))
    assert len(scene.order) == 3
    scene.at_rest()


def test_waiters_of_every_tenant_are_woken_and_may_time_out() -> None:
    """LOCO 6: the multi-tenant scheduler never woke a waiter and ignored its time-out."""
    scene = Scene(pools=ONE, tenants={"a": {"weight": 2}, "b": {}})
    calls = [scene.call(f"{t}{i}", 1, tenant=t) for t in "ab" for i in range(3)]
    results = scene.run_all(*calls, scene.call("tired", 1, tenant="b", wait_max=0.5))
    assert results[:-1] == [f"{t}{i}" for t in "ab" for i in range(3)] and isinstance(results[-1], QueueTimeout)
    scene.at_rest()


def test_refusals_leave_nothing_behind() -> None:
    """LOCO 8: each rejected call left a stale task that spoilt the agent's score."""
    scene = Scene(pools=ONE, waiting={"max_queued": 1})
    results = scene.run_all(*(scene.call(f"c{i}", 1, agent="a") for i in range(100)))
    assert sum(isinstance(x, QueueFull) for x in results) == 98
    scene.run_all(scene.call("a again", 1, agent="a"), scene.call("b", 1))
    assert scene.order[-2:] == ["a again", "b"]
    scene.at_rest()


def test_finished_calls_are_forgotten() -> None:
    """LOCO 9: 326 bytes a call were kept for ever."""
    scene = Scene(pools=ONE)

    def kept() -> int:
        gc.collect()
        return sum(1 for x in gc.get_objects() if type(x).__name__ in ("Lease", "LoopWaiter", "Timer", "Route"))

    scene.run_all(*(scene.call(f"c{i % 10}", 0, wait_max=1e6, agent=f"a{i % 10}") for i in range(1000)))
    before = kept()
    for _ in range(5):
        scene.run_all(*(scene.call(f"c{i % 10}", 0, wait_max=1e6, agent=f"a{i % 10}") for i in range(1000)))
        scene.started.clear()
        scene.ended.clear()
    assert kept() <= before + 200
    assert len(scene.clock._heap._entries) < 3000
    scene.at_rest()


def test_a_call_within_a_call_at_capacity_one_completes() -> None:
    """LOCO deadlocked, HM waited 120 s, ARL failed at the time-out."""
    scene = Scene(pools=ONE)

    async def outer(agent: str) -> str:
        async with scene.rm.lease(agent="outer"), scene.rm.lease(agent=agent):
            return "inner"

    assert scene.run_all(outer("outer"), outer("other")) == ["inner", "inner"]
    scene.at_rest()


@pytest.mark.parametrize("turns", range(12))
def test_a_cancel_near_the_grant_leaves_no_waiter_asleep(turns: int) -> None:
    """HM: at one of twelve offsets the slot was free and the next waiter asleep. LOCO: the slot was gone."""
    rm = ResourceManager(pools=ONE)

    async def all_() -> None:
        holder = await rm.lease(agent="holder").acquire_async()
        victim = asyncio.ensure_future(rm.lease(agent="victim").acquire_async())
        nxt = asyncio.ensure_future(rm.lease(agent="next").acquire_async())
        for _ in range(2):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(holder.release)
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        victim.cancel()
        if turns >= 6:
            nxt_two = asyncio.ensure_future(rm.lease(agent="third").acquire_async())
        got = await asyncio.gather(victim, return_exceptions=True)
        if not isinstance(got[0], BaseException):
            got[0].release()
        (await asyncio.wait_for(nxt, 10)).release()
        if turns >= 6:
            (await asyncio.wait_for(nxt_two, 10)).release()

    asyncio.run(all_())
    rm.kernel.check()
    assert rm.statistics().running == rm.statistics().waiting == 0


def test_a_holder_that_vanishes_is_found() -> None:
    """TT kept the record of a holder that vanished, LOCO its slot."""
    scene = Scene(pools=ONE)
    for _ in range(5):
        scene.rm.lease(agent="vanished", run_s=600).acquire()
        gc.collect()
        began = scene.now
        scene.run(lambda: scene.call("next", 1))
        assert scene.started[-1][1] - began <= 601
        gc.collect()
        scene.at_rest()


# --- streams ---


def test_a_dropped_stream_frees_the_lane_and_closes_the_provider() -> None:
    """HM 5: the provider went on to produce all chunks to nobody. ARL: the reservation stayed."""
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock)
    produced = 0

    async def chunks() -> AsyncIterator[str]:
        nonlocal produced
        async for chunk in provider.stream(chunks=100, gap=1):
            produced += 1
            yield chunk

    async def all_() -> None:
        async for _ in adapters.astream(scene.rm, CallSpec(agent="a"), chunks):
            break
        gc.collect()
        await scene.call("next", 1)
        await asyncio.sleep(200)

    scene.run(all_)
    assert produced == 1 and provider.open_streams == 0 and scene.start_of("next") == 1
    scene.at_rest()


def test_open_streams_count_against_the_lanes() -> None:
    """ARL 5: a limit of one allowed five open streams."""
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock)

    async def read(i: int) -> int:
        return len([x async for x in adapters.astream(scene.rm, CallSpec(agent=f"a{i}"), provider.stream)])

    assert scene.run_all(*(read(i) for i in range(5))) == [3] * 5
    assert provider.most == 1
    scene.at_rest()


def test_a_hung_stream_is_ended_too() -> None:
    """ARL timed out plain calls only."""
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock, script=[{"chunks": 2, "then": SILENCE}])

    async def read() -> int:
        spec = CallSpec(agent="a", idle_s=5)
        return len([x async for x in adapters.astream(scene.rm, spec, provider.stream)])

    results = scene.run_all(read(), scene.call("next", 1))
    assert isinstance(results[0], TimeoutError) and results[1] == "next" and scene.start_of("next") <= 6.5
    assert provider.open_streams == 0
    scene.at_rest()


@pytest.mark.parametrize("after", [0, 2])
def test_a_refusal_within_a_stream_is_not_hidden(after: int) -> None:
    """HM 2: the 429 of a stream came as a 200, with no retry and no word to the limiter."""
    scene = Scene()
    provider = Provider(scene.clock, script=[{"chunks": after, "then": Refused(429, retry_after=5)}])
    got: list[str] = []

    async def read() -> None:
        async for chunk in adapters.astream(scene.rm, CallSpec(agent="a", model="m"), provider.stream):
            got.append(chunk)

    (result,) = scene.run_all(read())
    if after:
        assert isinstance(result, Refused) and len(got) == 2
    else:
        assert result is None and len(got) == 3 and 5 <= provider.seen[1] <= 5.5
    assert scene.rm.statistics().scopes["default/m"].pace < 1
    scene.at_rest()


def test_cancelling_the_caller_stops_the_call() -> None:
    """ARL 4: the call ran on. HM: a request whose client had gone was still sent."""
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock, seconds=10)

    async def all_() -> None:
        calls = [
            asyncio.ensure_future(adapters.acall(scene.rm, CallSpec(agent=f"a{i}"), provider.answer)) for i in range(3)
        ]
        await asyncio.sleep(1)
        calls[0].cancel()
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    scene.run(all_)
    assert provider.seen == [0, 1] and provider.running == 0, "the second was cancelled in the queue and never sent"
    scene.at_rest()


def test_a_second_release_or_refund_gives_nothing_twice() -> None:
    """TT refuses a second refund; ARL's late one could be credited twice."""
    scene = Scene(pools={"default": {"lanes": 2, "limits": [{"tokens": 1000, "per": 1e9}]}})
    lease = scene.rm.lease(tokens=400).acquire()
    other = scene.rm.lease(tokens=400).acquire()
    for _ in range(3):
        lease.refund()
        lease.release()
        lease.settle(output_tokens=1)
    assert scene.rm.statistics().limits["pools.default.limits[0]"].level == 600
    assert scene.rm.statistics().running == 1
    other.release()
    assert scene.rm.statistics().limits["pools.default.limits[0]"].level == 600
    scene.rm.kernel.check()


def test_a_blocked_thread_does_not_stall_the_loop() -> None:
    """LOCO's adapter for one framework ran sync work on the event loop."""
    rm = ResourceManager(pools={"default": {"lanes": 2}})
    go = threading.Event()

    async def all_() -> None:
        blocked = [
            asyncio.ensure_future(adapters.acall_blocking(rm, CallSpec(agent="b"), lambda: go.wait(10)))
            for _ in range(2)
        ]
        while rm.statistics().running < 2:
            await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*blocked) == [True, True]

    asyncio.run(all_())
