"""Conformance: refusals, hangs, and the streams that end in every other way than well."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from typing import Any

import agentrm
from agentrm.adapters.conformance.harness import Harness, Threads, manager, needs_threads, run_async, until
from agentrm.adapters.conformance.lanes import _async_until, _is_refusal, _is_settled, _raised, _raised_in_a_child
from agentrm.adapters.conformance.provider import PATIENCE_S, Hang, Provider, Refuse, Reply

__all__ = ["Failures", "Streams"]

LONG = Reply(tuple("abcdefgh"), usage=(20, 8))


class Streams:
    """See `agentrm.adapters.conformance`."""

    harness: Harness

    def test_a_stream_holds_its_lane_to_the_last_chunk(self) -> None:
        rm, provider = manager(), Provider(LONG)
        stream = self.harness.model(rm, provider).stream()
        assert next(stream) == "a"
        assert rm.statistics().running == 1
        assert "".join(stream) == "bcdefgh"
        _is_settled(rm, granted=1)

    def test_a_stream_that_is_closed_early_lets_the_next_one_in_and_ends_upstream(self) -> None:
        rm, provider = manager(), Provider(LONG)
        gated = self.harness.model(rm, provider)
        stream: Any = gated.stream()
        next(stream)
        threads = Threads(gated.call)
        until(rm, lambda s: s.waiting == 1, "a waiting call")
        stream.close()
        assert threads.outcomes() == ["one two three"]
        assert provider.abandoned == 1
        _is_settled(rm, granted=2)

    def test_a_stream_that_is_dropped_lets_the_next_one_in_and_ends_upstream(self) -> None:
        rm, provider = manager(), Provider(LONG)
        gated = self.harness.model(rm, provider)
        stream = gated.stream()
        next(stream)
        del stream
        gc.collect()
        assert gated.call() == "one two three"
        assert provider.abandoned == 1
        _is_settled(rm, granted=2)

    def test_a_stream_that_is_open_at_a_fork_stays_the_parents(self) -> None:
        rm, provider = manager(), Provider(LONG)
        stream = self.harness.model(rm, provider).stream()
        assert next(stream) == "a"
        assert _raised_in_a_child(lambda: next(stream)) == "ForkedError"
        assert "".join(stream) == "bcdefgh"
        _is_settled(rm, granted=1)

    def test_an_async_stream_that_is_closed_early_lets_the_next_one_in_and_ends_upstream(self) -> None:
        rm, provider = manager(), Provider(LONG)
        gated = self.harness.model(rm, provider)

        async def main() -> str:
            stream: Any = gated.astream()
            await stream.__anext__()
            waiting = asyncio.create_task(gated.acall())
            await _async_until(lambda: rm.statistics().waiting == 1)
            await stream.aclose()
            return await waiting

        assert run_async(main) == "one two three"
        assert provider.abandoned == 1
        _is_settled(rm, granted=2)

    def test_an_async_stream_that_is_dropped_lets_the_next_one_in_and_ends_upstream(self) -> None:
        rm, provider = manager(), Provider(LONG)
        gated = self.harness.model(rm, provider)

        async def main() -> str:
            async for _ in gated.astream():
                break
            gc.collect()
            text = await gated.acall()
            await _async_until(lambda: provider.abandoned == 1)
            return text

        assert run_async(main) == "one two three"
        _is_settled(rm, granted=2)

    def test_a_task_cancelled_within_a_stream_lets_the_next_one_in(self) -> None:
        rm, provider = manager(), Provider(Hang(after=1))
        gated = self.harness.model(rm, provider)

        async def read() -> str:
            return "".join([chunk async for chunk in gated.astream()])

        async def main() -> str:
            first = asyncio.create_task(read())
            await _async_until(lambda: first.done() or (provider.open == 1 and rm.statistics().running == 1))
            if first.done():
                first.result()
            first.cancel()
            text = await gated.acall()
            await _async_until(lambda: provider.abandoned == 1)
            return text

        assert run_async(main) == "one two three"
        _is_settled(rm, granted=2)

    def test_a_refusal_of_a_stream_is_seen_and_tried_again(self) -> None:
        clock = agentrm.VirtualClock()
        rm, provider = manager(clock=clock), Provider(Refuse(429, retry_after=2.0), LONG)
        gated = self.harness.model(rm, provider)
        threads = Threads(lambda: "".join(gated.stream()))
        until(rm, lambda s: s.waiting == 1 and s.running == 0, "a call that waits and holds nothing")
        clock.advance(4)
        assert threads.outcomes() == ["abcdefgh"]
        assert provider.calls == 2

    def test_a_stream_that_goes_silent_is_reaped_and_ends_upstream(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
        provider = Provider(Hang(after=2))
        gated = self.harness.model(rm, provider)
        came: list[str] = []
        two_came = threading.Event()

        def read() -> None:
            for chunk in gated.stream():
                came.append(chunk)
                if len(came) == 2:
                    two_came.set()

        threads = Threads(read)
        assert two_came.wait(PATIENCE_S)
        clock.advance(32)
        (error,) = threads.outcomes()
        assert isinstance(error, agentrm.IdleTimeout)
        assert came == ["one ", "two "]
        assert rm.statistics().running == 0
        provider.release()
        provider.wait_closed()
        until(rm, lambda s: s.pools["default"].zombies == 0, "no zombie")
        assert provider.calls == 1, "chunks can't be taken back, so the stream is not begun again"

    def test_an_async_stream_that_goes_silent_is_reaped_and_ends_upstream(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
        provider = Provider(Hang(after=2))
        gated = self.harness.model(rm, provider)

        async def main() -> tuple[str, BaseException]:
            came = ""
            try:
                async for chunk in gated.astream():
                    came += chunk
                    if came == "one two ":
                        asyncio.get_running_loop().call_soon(clock.advance, 32)
            except NotImplementedError:
                raise
            except Exception as error:  # noqa: BLE001 - it is the result
                return came, error
            raise AssertionError("the silent stream came to an end")

        came, error = run_async(main)
        assert came == "one two "
        assert isinstance(error, agentrm.IdleTimeout)
        assert provider.open == 0
        assert provider.abandoned == 1
        _is_settled(rm, granted=1)


class Failures:
    """See `agentrm.adapters.conformance`."""

    harness: Harness

    def test_a_refusal_with_a_hint_waits_that_long_and_holds_nothing(self) -> None:
        clock = agentrm.VirtualClock()
        rm, provider = manager(clock=clock), Provider(Refuse(429, retry_after=5.0))
        threads = Threads(self.harness.model(rm, provider).call)
        until(rm, lambda s: s.waiting == 1 and s.running == 0, "a call that waits and holds nothing")
        clock.advance(4.9)
        assert provider.calls == 1
        clock.advance(2)
        assert threads.outcomes() == ["one two three"]
        assert provider.calls == 2

    def test_a_server_error_is_tried_again_and_then_raised_as_it_was(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, pools={"default": {"retry": {"attempts": 3}}})
        provider = Provider(*[Refuse(500)] * 3)
        threads = Threads(self.harness.model(rm, provider).call)
        provider.wait_calls(3, lambda: clock.advance(1))
        (error,) = threads.outcomes()
        assert _is_refusal(error)
        assert provider.calls == 3
        assert rm.statistics().running == 0

    def test_an_exhausted_quota_is_final(self) -> None:
        rm, provider = manager(), Provider(Refuse(429, code="insufficient_quota"))
        gated = self.harness.model(rm, provider)
        assert _is_refusal(_raised(gated.call))
        assert isinstance(_raised(gated.call), agentrm.ScopeClosed)
        assert provider.calls == 1
        _is_settled(rm, granted=1)

    def test_a_hung_sync_call_is_tried_once_more_and_its_late_result_dropped(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
        provider = Provider(Hang(), Reply(("second",)))
        gated = self.harness.model(rm, provider)
        needs_threads(gated)
        threads = Threads(gated.call)
        provider.wait_open(1)
        clock.advance(32)
        assert threads.outcomes() == ["second"]
        assert rm.statistics().pools["default"].zombies == 1, "the thread that can't be stopped is counted"
        provider.release()
        provider.wait_closed()
        until(rm, lambda s: s.pools["default"].zombies == 0, "that the zombie ended with its thread")
        assert provider.calls == 2

    def test_a_sync_call_that_hangs_twice_raises_and_leaves_no_lane(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "zombies": 2})
        provider = Provider(Hang(), Hang())
        gated = self.harness.model(rm, provider)
        needs_threads(gated)
        threads = Threads(gated.call)
        for attempt in (1, 2):
            provider.wait_open(attempt)
            clock.advance(32)
        (error,) = threads.outcomes()
        assert isinstance(error, agentrm.IdleTimeout)
        assert gated.call() == "one two three", "the lane is free while both zombies are alive"
        provider.release()
        provider.wait_closed()
        until(rm, lambda s: s.pools["default"].zombies == 0, "no zombie")

    def test_a_hung_async_call_is_interrupted_tried_once_more_and_never_cancelled(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
        provider = Provider(Hang(), Hang())
        gated = self.harness.model(rm, provider)

        async def main() -> BaseException:
            call = asyncio.create_task(gated.acall())
            for attempt in (1, 2):
                await _async_until(partial(_is_open, provider, attempt))
                clock.advance(32)
                assert rm.statistics().running == 0, "the lane is not free in the tick of the reap"
            (error,) = await asyncio.gather(call, return_exceptions=True)
            assert isinstance(error, BaseException)
            return error

        assert isinstance(run_async(main), agentrm.IdleTimeout)
        assert provider.open == 0
        _is_settled(rm, granted=2)

    def test_a_run_limit_ends_the_callers_wait_without_another_attempt(self) -> None:
        clock = agentrm.VirtualClock()
        rm = manager(clock=clock, reaper={"run_s": 10, "sweep_s": 1})
        provider = Provider(Hang())
        threads = Threads(self.harness.model(rm, provider).call)
        provider.wait_open(1)
        clock.advance(12)
        (error,) = threads.outcomes()
        assert isinstance(error, agentrm.RunTimeout)
        assert provider.calls == 1
        provider.release()

    def test_a_sync_tool_cancelled_on_a_loop_is_a_zombie_until_it_ends(self) -> None:
        rm, provider = manager(tools=1), Provider(Reply(holds=True))
        tool = self.harness.tool(rm, lambda: provider.call().text)

        async def main() -> None:
            running = asyncio.create_task(tool.arun())
            await _async_until(lambda: provider.open == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        run_async(main)
        assert rm.statistics().pools["tools"].zombies == 1, "the lane was given back and the thread forgotten"
        provider.release()
        provider.wait_closed()
        until(rm, lambda s: s.pools["tools"].zombies == 0 and s.running == 0, "that the zombie ended with its thread")

    def test_what_is_charged_is_what_was_reported(self) -> None:
        assert _charged(self.harness, Reply(usage=(300, 50)), "call") == 350
        assert _charged(self.harness, Reply(usage=(300, 50)), "stream") == 350

    def test_what_reports_no_use_is_charged_an_estimate(self) -> None:
        for way in ("call", "stream"):
            assert 0 < _charged(self.harness, Reply(("word " * 40,), usage=None), way) < 400

    def test_a_stream_that_was_cut_is_charged_for_what_came(self) -> None:
        reply = Reply(("word " * 80, "word " * 80, "end"), usage=(20, 1))
        cut = _charged(self.harness, reply, "cut")
        assert 60 < cut < 200, f"a cut stream of about 100 tokens was charged {cut}"


def _charged(harness: Harness, reply: Reply, way: str) -> int:
    """What the call took from a limit of tokens that does not refill."""
    limits = [{"tokens": 100_000, "per": 60}]
    rm = manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": limits}})
    gated = harness.model(rm, Provider(reply))
    (before,) = (limit.level for limit in rm.statistics().limits.values())
    if way == "call":
        gated.call()
    elif way == "stream":
        assert "".join(gated.stream()) == reply.text
    else:
        stream: Any = gated.stream()
        next(stream)
        stream.close()
    (after,) = (limit.level for limit in rm.statistics().limits.values())
    return before - after


def _is_open(provider: Provider, calls: int) -> bool:
    return provider.calls == calls and provider.open == 1
