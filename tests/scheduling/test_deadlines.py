"""Waiting, silence and running have limits of their own, each with an error of its own."""

from __future__ import annotations

import asyncio
import sys

import pytest

from agentrm import IdleTimeout, LeaseError, QueueTimeout, RunTimeout
from tests.scheduling.driver import Scene

ONE = {"default": {"lanes": 1}}


def test_wait_max_bounds_the_queue_and_nothing_else() -> None:
    scene = Scene(pools=ONE)
    results = scene.run_all(scene.call("holder", 100), scene.call("late", 5, wait_max=30))
    assert isinstance(results[1], QueueTimeout) and "queue wait" in str(results[1]) and results[1].is_retryable
    assert scene.order == ["holder"]
    scene.at_rest()


def test_wait_max_does_not_count_once_the_call_runs() -> None:
    scene = Scene(pools=ONE)
    assert scene.run_all(scene.call("a", 20), scene.call("b", 50, wait_max=30)) == ["a", "b"]


def test_the_configured_wait_is_the_default_and_may_be_lifted() -> None:
    scene = Scene(pools=ONE, waiting={"max_s": 10})
    results = scene.run_all(scene.call("a", 100), scene.call("b"), scene.call("c", wait_max=float("inf")))
    assert [type(x) for x in results] == [str, QueueTimeout, str]
    scene.at_rest()


def test_a_wait_of_zero_gets_a_free_lane_and_never_a_place_in_the_queue() -> None:
    scene = Scene(pools=ONE)
    with scene.rm.lease(wait_max=0), pytest.raises(QueueTimeout):
        scene.rm.lease(wait_max=0, parent=None).acquire()
    scene.at_rest()


def test_a_timed_out_waiter_lets_the_one_behind_it_run() -> None:
    scene = Scene(pools=ONE)
    results = scene.run_all(scene.call("a", 10), scene.call("b", wait_max=5), scene.call("c"))
    assert [type(x) for x in results] == [str, QueueTimeout, str]
    assert scene.start_of("c") == 10
    scene.at_rest()


@pytest.mark.parametrize("many", [1, 40])
def test_time_out_at_the_instant_of_the_grant(many: int) -> None:
    """Whichever comes first, the lane is held once or free, and those behind run."""
    scene = Scene(pools=ONE)
    calls = [scene.call("holder", 10)] + [scene.call(f"w{i}", 0, wait_max=10) for i in range(many)]
    results = scene.run_all(*calls, scene.call("last"))
    assert results[-1] == "last" and all(isinstance(x, (str, QueueTimeout)) for x in results)
    assert scene.most_inside == 1
    scene.at_rest()


def test_run_limit_interrupts_an_await_with_a_typed_error() -> None:
    scene = Scene(pools=ONE)
    results = scene.run_all(scene.call("slow", 37, run_s=1), scene.call("next"))
    assert isinstance(results[0], RunTimeout) and isinstance(results[0], TimeoutError)
    assert results[0].pool == "default" and results[0].agent == "slow" and results[0].is_retryable
    assert results[1] == "next" and 1 <= scene.start_of("next") <= 2
    scene.at_rest()


def test_silence_interrupts_and_heartbeats_prevent_it() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})

    async def streaming() -> str:
        async with scene.rm.lease(agent="stream", idle_s=5) as lease:
            for _ in range(100):
                await asyncio.sleep(4)
                lease.heartbeat()
        return "done"

    results = scene.run_all(streaming(), scene.call("silent", 50, idle_s=5))
    assert results[0] == "done"
    assert isinstance(results[1], IdleTimeout) and not isinstance(results[1], RunTimeout)
    ended = dict(scene.ended)["silent"]
    assert 5 <= ended <= 6
    scene.at_rest()


def test_an_explicit_infinity_lifts_a_limit() -> None:
    scene = Scene(pools=ONE, reaper={"idle_s": 5, "run_s": 20})
    inf = float("inf")
    assert scene.run_all(scene.call("long", 5000, idle_s=inf, run_s=inf)) == ["long"]


def test_an_absurdly_short_limit_is_a_limit() -> None:
    scene = Scene(pools=ONE)
    (result,) = scene.run_all(scene.call("a", 100, run_s=1e-9))
    assert isinstance(result, RunTimeout)


@pytest.mark.parametrize("huge", [1e10, 1e300])
def test_an_absurdly_long_limit_is_none(huge: float) -> None:
    scene = Scene(pools=ONE)
    assert scene.run_all(scene.call("a", 5, run_s=huge, idle_s=huge, wait_max=huge)) == ["a"]
    assert scene.run_all(scene.call("a", 5), scene.call("b", 5, wait_max=huge)) == ["a", "b"]


def test_a_tool_without_chunks_is_not_taken_for_idle() -> None:
    scene = Scene()
    assert scene.run_all(scene.call("tool", 500, kind="tool")) == ["tool"]


def test_on_reap_is_told_once_with_the_error_and_may_use_the_manager() -> None:
    scene = Scene(pools=ONE)
    told: list[tuple[str, type]] = []

    def on_reap(lease: object, error: LeaseError) -> None:
        told.append((lease.agent, type(error)))  # type: ignore[attr-defined]
        assert scene.rm.statistics().running == 0
        again = scene.rm.try_lease(agent="from the callback")
        assert again is not None
        again.release()
        lease.release()  # type: ignore[attr-defined]

    (result,) = scene.run_all(scene.call("a", 10, run_s=1, on_reap=on_reap))
    assert isinstance(result, RunTimeout) and told == [("a", RunTimeout)]
    scene.at_rest()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_failing_on_reap_stops_nothing(error: type[BaseException]) -> None:
    scene = Scene(pools=ONE)

    def on_reap(*_: object) -> None:
        raise error("from the callback")

    calls = [scene.call(f"c{i}", 10, run_s=1, on_reap=on_reap) for i in range(3)]
    if error is ValueError:
        assert all(isinstance(x, RunTimeout) for x in scene.run_all(*calls))
        scene.at_rest()
    else:
        for call in calls:
            call.close()
        lease = scene.rm.lease(run_s=1, on_reap=on_reap).acquire()
        with pytest.raises(error):
            scene.clock.advance(5)
        assert lease.reaped
        other = scene.rm.lease(run_s=1).acquire()
        scene.clock.advance(5)
        assert other.reaped, "the reaper is dead"


def test_a_reap_never_surfaces_as_a_cancellation() -> None:
    scene = Scene(pools=ONE)

    async def work() -> str:
        try:
            await scene.call("a", 100, run_s=1)
        except asyncio.CancelledError:
            return "cancelled"
        except RunTimeout:
            task = asyncio.current_task()
            assert task is not None and not getattr(task, "cancelling", lambda: 0)()
            await asyncio.sleep(1)  # the task is as good as new
            return "typed"
        return "nothing"

    assert scene.run(work) == "typed"


def test_a_cancellation_from_outside_stays_one() -> None:
    scene = Scene(pools=ONE)

    async def work() -> str:
        task = asyncio.ensure_future(scene.call("a", 100))
        await asyncio.sleep(1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "?"

    assert scene.run(work) == "cancelled"
    scene.at_rest()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task of 3.10 does not count who cancels it")
def test_a_cancellation_together_with_a_reap_stays_a_cancellation() -> None:
    scene = Scene(pools=ONE, reaper={"sweep_s": 1})

    async def work() -> str:
        task = asyncio.ensure_future(scene.call("a", 100, run_s=1))
        await asyncio.sleep(0)
        scene.clock.call_at(scene.clock.now_ns() + 10**9, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        except RunTimeout:
            return "typed"
        return "?"

    assert scene.run(work) == "cancelled"
    scene.at_rest()


def test_clean_up_during_a_cancellation_may_be_reaped_too() -> None:
    """The count of cancellations that came before the lease does not hide that this one is the reaper's."""
    scene = Scene(pools=ONE)
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            try:
                async with scene.rm.lease(run_s=1):
                    await asyncio.sleep(100)
            except RunTimeout:
                seen.append("typed")

    async def outer() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    scene.run(outer)
    assert seen == ["typed"]
    scene.at_rest()


def test_a_body_that_swallows_the_interruption_still_ends_with_the_error() -> None:
    scene = Scene(pools=ONE)

    async def work() -> int:
        with pytest.raises(RunTimeout):
            async with scene.rm.lease(run_s=1):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    pass
                await asyncio.sleep(1)
        task = asyncio.current_task()
        return getattr(task, "cancelling", lambda: 0)()

    assert scene.run(work) == 0
    scene.at_rest()


def test_asyncio_timeouts_inside_and_outside_keep_their_meaning() -> None:
    scene = Scene(pools=ONE)

    async def inside() -> str:
        async with scene.rm.lease():
            try:
                await asyncio.wait_for(asyncio.sleep(100), 1)
            except asyncio.TimeoutError:
                return "inner"
        return "?"

    async def outside() -> str:
        try:
            await asyncio.wait_for(scene.call("a", 100, run_s=50), 3)
        except asyncio.TimeoutError as error:
            return "outer" if not isinstance(error, RunTimeout) else "reaped"
        return "?"

    assert scene.run(inside) == "inner"
    assert scene.run(outside) == "outer"
    scene.at_rest()


def test_a_guard_inside_the_block_leaves_the_rest_of_the_block_guarded() -> None:
    scene = Scene(pools=ONE)

    async def work() -> None:
        async with scene.rm.lease(run_s=5) as lease:
            with lease.guard():
                await asyncio.sleep(1)
            await asyncio.sleep(100)

    assert isinstance(scene.run_all(work())[0], RunTimeout)
    assert scene.clock.elapsed < 8
    scene.at_rest()


def test_a_guard_turns_a_reap_into_the_typed_error() -> None:
    scene = Scene(pools=ONE)

    async def work() -> str:
        lease = await scene.rm.lease(idle_s=2).acquire_async()
        try:
            with lease.guard():
                await asyncio.sleep(100)
        except IdleTimeout:
            with pytest.raises(IdleTimeout), lease.guard():
                pass
            return "typed"
        finally:
            lease.release()
        return "?"

    assert scene.run(work) == "typed"
    scene.at_rest()


def test_the_errors_avoid_the_words_that_frameworks_look_for() -> None:
    scene = Scene(pools=ONE)
    results = scene.run_all(scene.call("a", 100, run_s=20), scene.call("b", 100, idle_s=1), scene.call("c", wait_max=1))
    for error in results:
        text = str(error).lower()
        assert isinstance(error, (LeaseError, QueueTimeout))
        assert not any(x in text for x in ("rate limit", "too many requests", "429", "throttl", "resource exhausted"))


def test_a_clock_that_jumps_ahead_reaps_once() -> None:
    scene = Scene(pools=ONE)
    lease = scene.rm.lease().acquire()
    scene.clock._now += 10**15
    scene.clock.advance(1)
    assert lease.reaped and scene.rm.statistics().pools["default"].reaped == 1
    lease.release()
    scene.at_rest()
