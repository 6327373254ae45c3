"""Area b: hung calls, and the lanes that they held. One test for each report."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrm import ConfigError, IdleTimeout, LeaseError, ResourceManager, RunTimeout, adapters, current_lease
from agentrm.adapters import CallSpec
from tests.reports.stub import SILENCE, Provider, Refused
from tests.scheduling.driver import Scene, in_threads, until

ONE = {"default": {"lanes": 1}}


@pytest.mark.parametrize("waiting", [0, 1, 5])
def test_r14_a_reap_frees_exactly_that_lane_in_the_same_tick(waiting: int) -> None:
    scene = Scene(pools={"default": {"lanes": 1}, "other": {"lanes": 1}})
    seen: list[tuple[float, int]] = []

    def on_reap(lease: Any, error: Exception) -> None:
        stats = scene.rm.statistics().pools
        seen.append((scene.now, stats["default"].in_use))
        assert stats["other"].in_use == 1

    async def session() -> None:
        other = await scene.rm.lease(agent="other", pool="other").acquire_async()
        messages = [scene.call(f"m{i}", 1, at=1) for i in range(waiting)]
        await asyncio.gather(scene.call("Z", 10_000, run_s=5, on_reap=on_reap), *messages, return_exceptions=True)
        other.release()

    scene.run(session)
    assert seen == [(pytest.approx(5, abs=1.01), 1 if waiting else 0)]
    if waiting:
        assert scene.start_of("m0") == seen[0][0], "the waiting message starts in the tick of the reap"
    scene.at_rest()


def test_r16_progress_prevents_a_reap_whatever_waits_behind() -> None:
    scene = Scene(pools=ONE)
    told: list[float] = []
    last_chunk = 0.0

    async def streaming() -> None:
        nonlocal last_chunk
        asked = {"idle_s": 120, "run_s": float("inf"), "on_reap": lambda *_: told.append(scene.now)}
        async with scene.rm.lease(agent="stream", **asked) as lease:
            for _ in range(600):
                await asyncio.sleep(2)
                lease.heartbeat()
            last_chunk = scene.now
            assert told == []
            await asyncio.sleep(100_000)

    results = scene.run_all(streaming(), *(scene.call(f"q{i}", 1) for i in range(5)))
    assert isinstance(results[0], IdleTimeout) and last_chunk == 1200
    assert len(told) == 1 and 120 <= told[0] - last_chunk <= 121
    assert scene.order == [f"q{i}" for i in range(5)]
    scene.at_rest()


def test_r18_what_waits_behind_a_zombie_keeps_its_order() -> None:
    scene = Scene(pools=ONE)
    results = scene.run_all(scene.call("Z", 10_000, run_s=5), *(scene.call(f"m{i}", 1) for i in range(1, 4)))
    assert isinstance(results[0], RunTimeout) and results[1:] == ["m1", "m2", "m3"]
    assert scene.order == ["Z", "m1", "m2", "m3"]


def test_r19_a_call_that_never_answers_ends_with_its_deadline() -> None:
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock, script=[Refused(503), SILENCE])
    spec = CallSpec(agent="a", run_s=300, idle_s=float("inf"))

    async def call() -> tuple[float, float]:
        began = scene.now
        with pytest.raises(RunTimeout) as caught:
            await adapters.acall(scene.rm, spec, provider.answer)
        assert caught.value.is_retryable
        return began, scene.now

    ((began, ended),) = scene.run_all(call())
    assert len(provider.seen) == 2
    retried = provider.seen[1]
    assert retried - began <= 1 and 300 <= ended - retried <= 301
    assert provider.running == 0
    scene.at_rest()


def test_r20_a_stalled_call_is_tried_once_more_and_only_the_second_answer_counts() -> None:
    scene = Scene()
    provider = Provider(scene.clock, script=[{"then": SILENCE}, {}])

    async def read() -> list[str]:
        chunks = []
        async for chunk in provider.stream():
            lease = current_lease()
            assert lease is not None
            lease.heartbeat()
            chunks.append(chunk)
        return chunks

    async def call() -> list[str]:
        return await adapters.acall(scene.rm, CallSpec(agent="a"), read)

    (chunks,) = scene.run_all(call(), longest_s=1000)
    assert chunks == [f"chunk {i} of request 2" for i in range(3)]
    assert len(provider.seen) == 2 and provider.open_streams == 0
    assert provider.seen[1] <= 130, "the default limits found it"
    scene.at_rest()


def test_r20_chunks_already_handed_out_are_not_taken_back() -> None:
    """Here the report contradicts the rule of streams, and the rule decides: the caller has the first chunks, so it
    is told by a retryable error; a stream that stalled before its first chunk is tried again."""
    scene = Scene()
    provider = Provider(scene.clock, script=[{"then": SILENCE}])
    got: list[str] = []

    async def read() -> None:
        async for chunk in adapters.astream(scene.rm, CallSpec(agent="a"), provider.stream):
            got.append(chunk)

    (error,) = scene.run_all(read(), longest_s=1000)
    assert isinstance(error, IdleTimeout) and error.is_retryable and len(got) == 3
    provider.script[:] = [{"chunks": 0, "then": SILENCE}, {}]
    got.clear()
    assert scene.run_all(read(), longest_s=1000) == [None] and len(got) == 3
    assert provider.open_streams == 0
    scene.at_rest()


def test_r22_ten_ways_to_end_a_call_leave_the_count_at_zero() -> None:
    scene = Scene(pools={"default": {"lanes": 10}})
    provider = Provider(scene.clock)
    ends: list[Any] = [
        TimeoutError("read"), Refused(502), Refused(504), ConnectionResetError("reset"), "cancel", ValueError("malformed"),
        "before", None, SILENCE, "gone",
    ]  # fmt: skip

    async def one(how: Any) -> None:
        async def send() -> str:
            if how == "before":
                raise TypeError("not valid, not sent")
            provider.script.append(None if isinstance(how, str) else how)
            return await provider.answer()

        spec = CallSpec(agent=str(how), retries=False, run_s=20)
        task = asyncio.ensure_future(adapters.acall(scene.rm, spec, send))
        await asyncio.sleep(0.5)
        if how == "cancel":
            task.cancel()
        if how == "gone":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.1)
            return
        await task

    results = scene.run_all(*(one(how) for how in ends))
    kinds = [type(x).__name__ for x in results]
    assert kinds == [
        "TimeoutError", "Refused", "Refused", "ConnectionResetError", "CancelledError", "ValueError", "TypeError", "NoneType",
        "RunTimeout", "NoneType",
    ]  # fmt: skip
    assert scene.rm.statistics().running == 0
    scene.run(lambda: scene.call("eleventh", 1))
    scene.at_rest()


@pytest.mark.parametrize("how", ["break and drop", "aclose", "raise", "cancel", "cached"])
def test_r24_the_lane_ends_with_the_consumer(how: str) -> None:
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock)

    async def consume() -> None:
        if how == "cached":
            async with scene.rm.lease(agent="a") as lease:
                lease.refund()
            return
        stream = adapters.astream(scene.rm, CallSpec(agent="a"), lambda: provider.stream(chunks=100))
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 2 and how == "raise":
                raise ValueError
            if seen == 2 and how == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            elif seen == 2:
                break
        if how == "aclose":
            await stream.aclose()  # type: ignore[attr-defined]
        del stream
        gc.collect()

    async def all_() -> None:
        with contextlib.suppress(ValueError, asyncio.CancelledError):
            await asyncio.ensure_future(consume())
        gc.collect()
        before = scene.now
        await scene.call("next", 1)
        assert scene.start_of("next") == before
        await asyncio.sleep(1)
        assert provider.open_streams == 0, "the provider's stream is closed too"

    scene.run(all_)
    scene.at_rest()


def test_r26_a_set_limit_interrupts_and_one_that_cannot_be_is_refused() -> None:
    scene = Scene(pools=ONE)
    provider = Provider(scene.clock, seconds=37)

    async def call() -> float:
        with pytest.raises(RunTimeout):
            await adapters.acall(scene.rm, CallSpec(agent="a", run_s=1), provider.answer)
        assert scene.rm.statistics().running == 0
        return scene.now

    (at,) = scene.run_all(call())
    assert 1 <= at <= 2
    for bad in (0, -1, "abc"):
        with pytest.raises(ConfigError, match=r"run_s.*a number"):
            ResourceManager(reaper={"run_s": bad})
        with pytest.raises(ConfigError, match=r"run_s.*a number"):
            scene.rm.lease(run_s=bad)  # type: ignore[arg-type]


def test_r27_zombies_are_counted_bounded_and_their_results_dropped() -> None:
    """A reaped call beyond the bound keeps its lane until its thread ends (that is the back-pressure), so threads at
    work are at most the lanes and the bound together."""
    lanes, bound = 2, 3
    scene = Scene(pools={"default": {"lanes": lanes, "zombies": bound}})
    go, lock = threading.Event(), threading.Lock()
    at_work = most = started = 0
    transcript: list[str] = []
    failures: list[type] = []

    def blocking() -> str:
        nonlocal at_work, most, started
        with lock:
            at_work += 1
            started += 1
            most = max(most, at_work)
        go.wait(20)
        with lock:
            at_work -= 1
        return "late result"

    def caller(i: int) -> None:
        try:
            spec = CallSpec(agent=f"a{i}", run_s=1, retries=False)
            transcript.append(adapters.call(scene.rm, spec, blocking))
        except LeaseError as error:
            failures.append(type(error))

    threads = in_threads(*(lambda i=i: caller(i) for i in range(10)))
    until(lambda: started == lanes and scene.rm.statistics().waiting == 10 - lanes)
    for _ in range(10):
        scene.clock.advance(1.1)
        pool = scene.rm.statistics().pools["default"]
        assert pool.zombies <= bound
        until(lambda n=pool.reaped: len(failures) == n and started == n + len(scene.rm.snapshot().holding))
    assert scene.rm.statistics().pools["default"].zombies == bound
    assert most == lanes + bound and scene.rm.statistics().waiting == 10 - lanes - bound
    go.set()
    for thread in threads:
        thread.join(20)
    until(lambda: not any(x.zombies for x in scene.rm.statistics().pools.values()))
    assert failures == [RunTimeout] * (lanes + bound)
    assert len(transcript) == 10 - lanes - bound, "only those that ran after the block was over"
    scene.at_rest()


def test_r28_cancelling_while_a_tool_runs_ends_the_stream() -> None:
    """The part of it that is a matter of leases: the stream ends at once, both tool calls end as cancelled, nothing
    is left. How a transcript shows that is tested with the contexts."""
    scene = Scene()
    record: dict[str, str] = {}

    async def tool(name: str, seconds: float) -> str:
        try:
            return await adapters.acall(
                scene.rm, CallSpec(kind="tool", tool=name), lambda: asyncio.sleep(seconds, name)
            )
        except asyncio.CancelledError:
            record[name] = "cancelled"
            raise

    async def agent() -> AsyncIterator[str]:
        yield "calls c1 and c2"
        await asyncio.gather(tool("c1", 10), tool("c2", 20))
        yield "done"

    async def consume() -> list[str]:
        return [chunk async for chunk in adapters.astream(scene.rm, CallSpec(agent="a"), agent)]

    async def all_() -> None:
        task = asyncio.ensure_future(consume())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scene.now == 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    scene.run(all_)
    assert record == {"c1": "cancelled", "c2": "cancelled"}
    scene.at_rest("default", "tools")


def test_r30_a_late_release_by_an_old_owner_changes_nothing() -> None:
    scene = Scene(pools=ONE)
    seventh = scene.rm.lease(agent="7", run_s=1).acquire()
    scene.clock.advance(2.5)
    assert seventh.reaped
    eighth = scene.rm.try_lease(agent="8")
    assert eighth is not None
    before = scene.rm.statistics().pools["default"]
    for _ in range(3):
        seventh.release()
        seventh.heartbeat()
        seventh.settle(output_tokens=5)
        seventh.__exit__(ValueError, ValueError(), None)
    after = scene.rm.statistics().pools["default"]
    assert (after.in_use, after.lanes) == (before.in_use, before.lanes) == (1, 1)
    assert scene.rm.try_lease(agent="9") is None and eighth.state == "running"
    assert after.zombies == 0
    eighth.release()
    scene.at_rest()


def test_r30_even_the_same_slot_of_the_table_is_told_apart_by_its_generation() -> None:
    scene = Scene(pools=ONE)
    port = scene.rm.gate.port
    old = scene.rm.lease(agent="old").acquire()
    handle = old.handle
    old.release()
    for _ in range(100):
        new = scene.rm.lease(agent="old").acquire()
        assert new.handle != handle
        assert port.settle(handle, 0, scene.clock.now_ns()) < 0 and port.heartbeat(handle, scene.clock.now_ns()) < 0
        assert scene.rm.statistics().running == 1
        new.release()
    scene.at_rest()
