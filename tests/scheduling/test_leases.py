"""A lease: three ways to hold it, one way out of each, and what is charged on the way."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

import agentrm
from agentrm import AdmissionError, AgentRMError, ConfigError, QueueFull, RequestTooLarge
from tests.scheduling.driver import Scene, assert_next_runs, in_threads, until

BUCKET = {"default": {"lanes": 2, "limits": [{"tokens": 1000, "per": 60}]}}


def level(scene: Scene, key: str = "pools.default.limits[0]") -> int:
    return scene.rm.statistics().limits[key].level


def test_with_holds_one_lane_for_the_block() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    with scene.rm.lease(agent="a") as lease:
        assert (lease.state, lease.pool, lease.agent) == ("running", "default", "a")
        assert scene.rm.try_lease(parent=None) is None
    assert lease.state == "done"
    scene.at_rest()


def test_async_with_holds_one_lane_for_the_block() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    assert scene.run_all(*(scene.call(f"c{i}") for i in range(5))) == [f"c{i}" for i in range(5)]
    assert scene.most_inside == 1
    assert scene.order == [f"c{i}" for i in range(5)]
    scene.at_rest()


def test_a_coroutine_that_stops_its_loop_in_the_queue_is_told_so() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def main() -> None:
        with scene.rm.lease(agent="a"), warnings.catch_warnings():  # nothing waits: nothing is said
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="async with"), scene.rm.lease(agent="b", parent=None):
                pass

    asyncio.run(main())
    scene.at_rest()


def test_by_hand_from_another_thread() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    lease = scene.rm.lease(agent="a").acquire()
    (thread,) = in_threads(lease.release)
    thread.join(10)
    lease.release()
    scene.at_rest()


def test_releasing_twice_frees_one_lane() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})
    first, second = (scene.rm.lease().acquire() for _ in range(2))
    for _ in range(3):
        first.release()
    assert scene.rm.statistics().running == 1
    second.release()
    scene.at_rest()


def test_a_lease_is_used_once() -> None:
    scene = Scene()
    lease = scene.rm.lease()
    with lease:
        pass
    with pytest.raises(AdmissionError, match="new lease for each call"), lease:
        pass
    scene.at_rest()


def test_try_lease_returns_a_running_lease_that_a_block_may_end() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    lease = scene.rm.try_lease(agent="a")
    assert lease is not None and lease.state == "running"
    assert scene.rm.try_lease(agent="b") is None
    with lease:
        assert agentrm.current_lease() is lease
    scene.at_rest()


def test_a_lease_that_was_never_acquired_costs_nothing() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    for _ in range(100):
        scene.rm.lease()
    gc.collect()
    lease = scene.rm.lease()
    lease.release()
    lease.heartbeat()
    assert lease.state == "done" and not lease.reaped
    scene.at_rest()


def test_settle_charges_the_real_use() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease(tokens=600) as lease:
        assert level(scene) == 400
        lease.settle(input_tokens=100, output_tokens=50)
    assert level(scene) == 850


def test_leaving_without_settling_charges_the_estimate() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease(tokens=600):
        pass
    assert level(scene) == 400


def test_zero_tokens_reported_means_unknown() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease(tokens=600) as lease:
        lease.settle(input_tokens=0, output_tokens=0)
    assert level(scene) == 400


def test_an_exception_charges_the_input_estimate() -> None:
    scene = Scene(pools=BUCKET)
    with pytest.raises(ZeroDivisionError), scene.rm.lease(input_tokens=100, max_output_tokens=500):
        assert level(scene) == 400
        raise ZeroDivisionError
    assert level(scene) == 900
    assert scene.rm.statistics().pools["default"].failed == 1


def test_an_exception_after_settle_charges_what_was_settled() -> None:
    scene = Scene(pools=BUCKET)
    with pytest.raises(ZeroDivisionError), scene.rm.lease(tokens=600) as lease:
        lease.settle(output_tokens=250)
        raise ZeroDivisionError
    assert level(scene) == 750


@pytest.mark.parametrize("fails", [False, True])
def test_a_refund_gives_everything_back(fails: bool) -> None:
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"tokens": 1000, "per": 60}, {"requests": 1, "per": 60}]}})
    try:
        with scene.rm.lease(tokens=600) as lease:
            lease.refund()
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert (level(scene), level(scene, "pools.default.limits[1]")) == (1000, 1)


def test_using_more_than_reserved_becomes_debt() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease(tokens=600) as lease:
        lease.settle(output_tokens=1600)
    assert level(scene) == -600
    scene.run(lambda: scene.call("next", tokens=100))
    assert scene.start_of("next") == pytest.approx(42, abs=0.01)  # 700 tokens at 1000 a minute


@pytest.mark.parametrize("tokens", [-1, 2_000_000_001, 1.5, "many", True])
def test_settle_refuses_what_is_no_count_and_still_frees_the_lane(tokens: object) -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    with pytest.raises(ConfigError, match="output_tokens"), scene.rm.lease() as lease:
        lease.settle(output_tokens=tokens)  # type: ignore[arg-type]
    scene.at_rest()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", -1), ("tokens", 1.5), ("tokens", 10**12), ("tokens", True), ("input_tokens", -1), ("input_tokens",
        "x"),
        ("max_output_tokens", -5), ("memory", -1), ("memory", 1 << 60), ("wait_max", -1), ("wait_max", "x"),
        ("wait_max", float("nan")), ("idle_s", 0), ("run_s", 0), ("run_s", -1), ("run_s", "abc"), ("priority",
        "urgent"),
        ("pool", "nowhere"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name_and_hold_nothing(key: str, value: object) -> None:
    scene = Scene()
    with pytest.raises(ConfigError) as caught:
        scene.rm.lease(**{key: value})
    assert caught.value.key == key and repr(value) in str(caught.value) and caught.value.allowed
    scene.at_rest()


def test_a_negative_input_estimate_cannot_hide_behind_the_output() -> None:
    scene = Scene()
    with pytest.raises(ConfigError, match="input_tokens"):
        scene.rm.lease(input_tokens=-5, max_output_tokens=10)


def test_zero_tokens_are_a_size_like_any_other() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease(tokens=0):
        assert level(scene) == 1000
    assert level(scene) == 1000


def test_a_call_of_unknown_size_reserves_something_where_tokens_are_limited() -> None:
    scene = Scene(pools=BUCKET)
    with scene.rm.lease():
        assert level(scene) == 0
        assert scene.rm.try_lease(parent=None) is None


def test_a_call_of_unknown_size_is_never_too_large_for_the_limit() -> None:
    """Otherwise one large call would shut the pool to all that name no size, for ever."""
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"tokens": 100, "per": 60}]}})
    with scene.rm.lease(tokens=50) as lease:
        lease.settle(output_tokens=5000)
    assert scene.run(lambda: scene.call("next", use=10)) == "next"


def test_a_call_too_large_for_its_limit_is_told_which_one() -> None:
    scene = Scene(pools=BUCKET)
    with pytest.raises(RequestTooLarge, match=r"pools\.default\.limits\[0\].*1000") as caught:
        scene.rm.lease(tokens=1001, agent="big").acquire()
    assert caught.value.agent == "big" and not caught.value.is_retryable
    scene.at_rest()


def test_the_queue_is_bounded_and_says_so() -> None:
    scene = Scene(pools={"default": {"lanes": 1}}, waiting={"max_queued": 2})
    calls = scene.run_all(*(scene.call(f"c{i}") for i in range(5)))
    assert [type(x) for x in calls] == [str, str, str, QueueFull, QueueFull]
    assert "waiting.max_queued" in str(calls[3]) and calls[3].is_retryable and calls[3].retry_after == 1.0
    scene.at_rest()


def test_the_identity_fills_in_what_is_not_said() -> None:
    scene = Scene()
    with agentrm.identity(agent="planner", tenant="research", session="s1", priority="background"):
        with scene.rm.lease() as lease:
            assert (lease.agent, lease.tenant, lease.session, lease.priority) == (
                "planner",
                "research",
                "s1",
                "background",
            )
        with scene.rm.lease(agent="other", priority="interactive") as lease:
            assert (lease.agent, lease.tenant, lease.priority) == ("other", "research", "interactive")
    with scene.rm.lease() as lease:
        assert (lease.agent, lease.tenant, lease.session, lease.priority) == ("default", "default", None, "interactive")


def test_waiting_and_holding_are_measured() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def second() -> None:
        async with scene.rm.lease(agent="b") as lease:
            assert lease.waited_s == pytest.approx(3)
            await asyncio.sleep(2)
            assert lease.held_s == pytest.approx(2)

    assert scene.run_all(scene.call("a", 3), second()) == ["a", None]


def test_a_block_entered_and_left_in_different_contexts_still_frees_the_lane() -> None:
    import contextvars

    scene = Scene(pools={"default": {"lanes": 1}})
    lease = scene.rm.lease()
    contextvars.copy_context().run(lease.__enter__)
    contextvars.copy_context().run(lease.__exit__, None, None, None)
    assert agentrm.current_lease() is None
    scene.at_rest()


def test_generators_that_hold_leases_may_be_interleaved_and_dropped() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})

    def chunks(name: str):  # type: ignore[no-untyped-def]
        with scene.rm.lease(agent=name, parent=None) as lease:
            for i in range(3):
                lease.heartbeat()
                yield i

    a, b = chunks("a"), chunks("b")
    assert [next(a), next(b), next(a)] == [0, 0, 1]
    del a
    gc.collect()
    assert scene.rm.statistics().running == 1
    b.close()
    assert agentrm.current_lease() is None
    scene.at_rest()


def test_a_guard_needs_a_lane() -> None:
    scene = Scene()
    lease = scene.rm.lease()
    with pytest.raises(AgentRMError, match="holds no lane"), lease.guard():
        pass


def test_threads_wait_in_the_order_of_their_arrival() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    first = scene.rm.lease(agent="x").acquire()
    done: list[int] = []

    def worker(i: int) -> None:
        with scene.rm.lease(agent="x"):
            done.append(i)

    threads = []
    for i in range(8):
        threads += in_threads(lambda i=i: worker(i))
        until(lambda i=i: scene.rm.statistics().waiting == i + 1)
    first.release()
    for thread in threads:
        thread.join(10)
    assert done == list(range(8))
    scene.at_rest()


def test_a_bare_manager_works() -> None:
    with agentrm.ResourceManager() as rm:
        with rm.lease() as lease:
            lease.settle(input_tokens=1, output_tokens=1)
        assert_next_runs(rm)
        with rm.lease(kind="tool") as tool:
            assert tool.pool == "tools"
