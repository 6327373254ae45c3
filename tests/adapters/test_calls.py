"""One lease round a call: attempts, layers, threads, and what a defect of other managers would do here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import weakref
from functools import partial
from typing import Any

import pytest

import agentrm
from agentrm.adapters import CallSpec, acall, acall_blocking, astream, astream_blocking, call, stream
from agentrm.adapters.conformance.harness import Threads, manager, run_async, until
from agentrm.adapters.conformance.provider import Hang, Provider, Refusal, Refuse, Reply
from tests.waiting import come

SPEC = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1)
TOOL = SPEC._replace(kind="tool", model=None, tool="t")
HOLDS = Reply(holds=True)


# --- attempts ---


def test_attempts_are_bounded_by_the_pool_and_the_last_exception_is_the_providers_own() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, pools={"default": {"retry": {"attempts": 4}}})
    refusals = [Refusal(Refuse(429, retry_after=1.0)) for _ in range(9)]
    raised: list[Refusal] = []

    def fn() -> None:
        raised.append(refusals[len(raised)])
        raise raised[-1]

    threads = Threads(lambda: call(rm, SPEC, fn))
    for attempt in (1, 2, 3):
        until(rm, partial(_waits_after, raised, attempt), "a call that waits and holds nothing")
        clock.advance(2)
    (error,) = threads.outcomes()
    assert error is refusals[3]
    assert len(raised) == 4


def test_those_that_failed_together_do_not_come_back_together() -> None:
    clock = agentrm.VirtualClock()
    rm, times = manager(8, clock=clock), []
    together = threading.Barrier(8)

    def caller() -> None:
        failed: list[bool] = []

        def fn() -> None:
            if failed:
                times.append(clock.now_ns())
                return
            failed.append(True)
            together.wait(20)
            raise Refusal(Refuse(502))

        call(rm, SPEC, fn)

    threads = Threads(*[caller] * 8)
    until(rm, lambda s: s.pools["default"].failed == 8, "eight failures")
    while len(times) < 8:
        clock.advance(0.005)
        threading.Event().wait(0.0005)  # for the threads to look
    threads.outcomes()
    assert len(set(times)) > 4, "they came back on one beat"


def test_a_tool_is_not_run_again_because_it_may_have_acted() -> None:
    rm, provider = manager(), Provider(Refuse(503))
    with pytest.raises(Refusal):
        call(rm, TOOL, provider.call)
    assert provider.calls == 1
    assert not any(scope.closed_for_s for scope in rm.statistics().scopes.values()), "its errors close no model"


def test_a_bug_in_the_callers_code_is_neither_tried_again_nor_taken_for_a_provider() -> None:
    rm = manager()
    for error in (KeyError("x"), ValueError("429 in a text"), ZeroDivisionError()):
        with pytest.raises(type(error)) as caught:
            call(rm, SPEC, lambda error=error: _raise(error))
        assert caught.value is error
    assert rm.statistics().pools["default"].granted == 3


def test_the_frameworks_own_type_of_an_error_comes_out() -> None:
    class Theirs(agentrm.QueueTimeout):
        pass

    rm, provider = manager(), Provider(HOLDS)
    spec = SPEC._replace(wait_max=0, translate=lambda error: Theirs(str(error)))
    holder = Threads(lambda: call(rm, SPEC, provider.call))
    provider.wait_open(1)
    with pytest.raises(Theirs):
        call(rm, spec, provider.call)
    with pytest.raises(Theirs):
        run_async(lambda: acall(rm, spec, provider.acall))
    with pytest.raises(Theirs):
        next(iter(stream(rm, spec, provider.stream)))
    provider.release()
    holder.outcomes()
    assert provider.calls == 1


# --- layers ---


def test_a_second_call_below_a_model_is_a_call_of_its_own_and_keeps_to_the_lanes() -> None:
    """A model that asks another one three times at once: the first may share the lease, the others queue."""
    rm, provider = manager(1), Provider()

    async def inner() -> str:
        return (await acall(rm, SPEC, provider.acall)).text

    async def outer() -> str:
        return "".join(await asyncio.gather(inner(), inner(), inner()))

    assert run_async(lambda: acall(rm, SPEC, outer)) == "one two three" * 3
    assert rm.statistics().running == 0


def test_a_task_that_outlives_its_call_is_not_taken_for_a_part_of_it() -> None:
    rm, provider = manager(1), Provider()

    async def main() -> None:
        gate, late = asyncio.Event(), []

        async def background() -> None:
            await gate.wait()
            late.append(await acall(rm, SPEC, provider.acall))

        async def fn() -> asyncio.Task[None]:
            return asyncio.create_task(background())

        task = await acall(rm, SPEC, fn)
        gate.set()
        await task
        assert late

    run_async(main)
    assert rm.statistics().pools["default"].granted == 2


def test_two_managers_are_two_gates() -> None:
    one, two = manager(), manager()
    assert call(one, SPEC, lambda: call(two, SPEC, lambda: "x")) == "x"
    assert [rm.statistics().pools["default"].granted for rm in (one, two)] == [1, 1]


@pytest.mark.parametrize("way", ["call", "stream"])
def test_a_limit_that_no_reply_reaches_counts_as_none(way: str) -> None:
    rm = manager(pools={"default": {"lanes": 1, "limits": [{"tokens": 1000, "per": 60}]}})
    spec = SPEC._replace(max_output_tokens=10**30)
    assert (call(rm, spec, lambda: "x") if way == "call" else next(stream(rm, spec, lambda: iter("x")))) == "x"


@pytest.mark.parametrize("inner", ["the same call", "another call"])
def test_managers_within_each_other_do_not_wait_for_themselves(inner: str) -> None:
    """A gated client that is gated for a second manager, and that for the first one again."""
    one, two = manager(1), manager(1)
    spec = SPEC if inner == "the same call" else SPEC._replace(model="other", wait_max=0)
    assert call(one, SPEC, lambda: call(two, SPEC, lambda: call(one, spec, lambda: "x"))) == "x"

    async def said() -> str:
        return "x"

    assert run_async(lambda: acall(one, SPEC, lambda: acall(two, SPEC, lambda: acall(one, spec, said)))) == "x"
    taken = 1 if inner == "the same call" else 2
    assert [rm.statistics().pools["default"].granted for rm in (one, two)] == [2 * taken, 2]


def test_layers_with_one_key_share_a_lease_whatever_they_are() -> None:
    rm = manager(tools=1)
    keyed = TOOL._replace(key="call-17")
    assert call(rm, keyed, lambda: call(rm, keyed, lambda: "x")) == "x"
    assert rm.statistics().pools["tools"].granted == 1


# --- threads ---


def test_an_interrupt_frees_the_caller_and_counts_the_thread_that_goes_on() -> None:
    rm, provider = manager(), Provider(HOLDS)
    left = threading.Event()

    def interrupt() -> None:
        provider.wait_open(1)
        while not left.wait(0.2):  # a signal that comes just before a thread sleeps does not wake it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    helper = Threads(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            call(rm, SPEC, provider.call)
    finally:
        left.set()
        helper.outcomes()
        signal.signal(signal.SIGINT, before)
    assert rm.statistics().pools["default"].zombies == 1
    assert call(rm, SPEC, provider.call).text == "one two three", "the lane is free"
    provider.release()
    until(rm, lambda s: s.pools["default"].zombies == 0, "the end of the zombie")


def test_a_finished_calls_result_is_not_kept_alive() -> None:
    class Big:
        usage = None

    rm = manager()
    result = call(rm, SPEC, Big)
    gone = weakref.ref(result)
    del result
    gc.collect()
    call(rm, SPEC, lambda: None)  # the worker's next job
    assert gone() is None


def test_an_exception_keeps_nothing_of_its_callers_alive() -> None:
    """Without a cycle through the frames, what they hold (another stream, say) is freed when the exception is."""

    class Held:
        pass

    def fn() -> None:
        raise Refusal(Refuse(400))

    def caller(rm: Any) -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(Refusal):
            call(rm, SPEC, fn)
        return weakref.ref(held)

    rm = manager()
    gc.collect()
    gc.disable()
    try:
        assert caller(rm)() is None
    finally:
        gc.enable()


def test_a_stream_is_read_on_one_thread_from_start_to_end() -> None:
    """Clients and databases may be bound to the thread that opened them."""
    rm = manager()
    read_on: list[int] = []

    def pieces() -> Any:
        for _ in range(5):
            read_on.append(threading.get_ident())
            yield "x"

    assert list(stream(rm, SPEC, pieces)) == ["x"] * 5
    assert len(set(read_on)) == 1

    async def main() -> list[str]:
        return [piece async for piece in astream_blocking(rm, SPEC, pieces)]

    read_on.clear()
    assert run_async(main) == ["x"] * 5
    assert len(set(read_on)) == 1


def test_a_blocking_stream_that_hangs_on_a_loop_is_a_zombie_until_it_ends() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    provider = Provider(Hang(after=1))

    async def main() -> BaseException:
        async def read() -> None:
            async for _ in astream_blocking(rm, SPEC, provider.stream):
                asyncio.get_running_loop().call_soon(clock.advance, 32)  # when the next chunk is waited for

        (error,) = await asyncio.gather(read(), return_exceptions=True)
        return error  # type: ignore[return-value]

    assert isinstance(run_async(main), agentrm.IdleTimeout)
    assert rm.statistics().pools["default"].zombies == 1
    assert rm.statistics().running == 0
    provider.release()
    provider.wait_closed()
    until(rm, lambda s: s.pools["default"].zombies == 0, "the end of the zombie")


def test_a_cancelled_blocking_call_leaves_at_once_and_its_result_is_dropped() -> None:
    rm, provider = manager(), Provider(HOLDS)

    async def main() -> None:
        task = asyncio.create_task(acall_blocking(rm, SPEC, provider.call))
        await come(lambda: provider.open)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(main)
    assert rm.statistics().pools["default"].zombies == 1
    provider.release()
    until(rm, lambda s: s.pools["default"].zombies == 0, "the end of the zombie")


# --- defects that other managers were seen with ---


def test_five_callers_and_a_refused_first_one_all_get_their_turn() -> None:
    """Elsewhere a raising holder skipped the wake-up: one finished, four slept for ever."""
    rm, provider = manager(1), Provider(Refuse(400))
    outcomes = Threads(*[lambda: call(rm, SPEC, provider.call)] * 5).outcomes()
    assert sum(isinstance(outcome, Refusal) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Reply) for outcome in outcomes) == 4


def test_a_cancel_at_any_moment_loses_no_lane() -> None:
    """Elsewhere a cancel in the turn of the grant kept the lane for good."""
    rm, provider = manager(1), Provider()

    async def main() -> None:
        for turns in range(25):
            first = asyncio.create_task(acall(rm, SPEC, provider.acall))
            second = asyncio.create_task(acall(rm, SPEC, provider.acall))
            for _ in range(turns):
                await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            assert rm.statistics().running == 0, f"cancelled after {turns} turns"
            assert (await acall(rm, SPEC, provider.acall)).text == "one two three"

    run_async(main)


def test_one_lane_means_one_open_stream() -> None:
    """Elsewhere the lane was free once the stream was open: five at once at a limit of one."""
    rm, provider = manager(1), Provider()

    async def read() -> str:
        return "".join([text async for text, _ in astream(rm, SPEC._replace(size=lambda c: 1), provider.astream)])

    async def main() -> list[str]:
        return await asyncio.gather(*[read() for _ in range(5)])

    assert run_async(main) == ["one two three"] * 5
    assert provider.peak == 1


def test_healthy_slow_calls_keep_all_lanes() -> None:
    """Elsewhere calls slower than a target took the concurrency from five to one."""
    clock = agentrm.VirtualClock()
    rm, provider = manager(5, clock=clock), Provider(*[HOLDS] * 5)
    for _ in range(3):
        slow = Threads(*[partial(call, rm, SPEC, provider.call)] * 5)
        provider.wait_open(5)
        clock.advance(25)
        provider.release()
        slow.outcomes()
        provider = Provider(*[HOLDS] * 5)
    assert rm.statistics().pools["default"].lanes == 5


def test_without_any_headers_the_lanes_are_used_from_the_start() -> None:
    """Elsewhere one call at a time was made until headers had been seen."""
    rm, provider = manager(6), Provider(*[HOLDS] * 6)
    threads = Threads(*[lambda: call(rm, SPEC, provider.call)] * 6)
    provider.wait_open(6)
    provider.release()
    threads.outcomes()


def _raise(error: BaseException) -> None:
    raise error


def _waits_after(raised: list[Refusal], attempts: int, statistics: Any) -> bool:
    return len(raised) == attempts and statistics.waiting == 1 and statistics.running == 0
