"""Conformance: never more calls than lanes, one lease per call, and every way out of a call lets the next one in."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import agentrm
from agentrm.adapters.conformance.harness import Harness, Threads, manager, run_async, until
from agentrm.adapters.conformance.provider import Provider, Refusal, Refuse, Reply

__all__ = ["Lanes"]

_variable: ContextVar[str] = ContextVar("agentrm_conformance", default="unset")
HOLDS = Reply(holds=True)


class Lanes:
    """See `agentrm.adapters.conformance`."""

    harness: Harness

    # --- one call, one lease ---

    def test_a_sync_call_takes_one_lease_and_gives_it_back(self) -> None:
        rm, provider = manager(), Provider()
        assert self.harness.model(rm, provider).call() == "one two three"
        _is_settled(rm, granted=1)

    def test_an_async_call_takes_one_lease_and_gives_it_back(self) -> None:
        rm, provider = manager(), Provider()
        assert run_async(self.harness.model(rm, provider).acall) == "one two three"
        _is_settled(rm, granted=1)

    def test_two_layers_on_one_gate_take_one_lease(self) -> None:
        rm, provider = manager(), Provider()
        gated = self.harness.layered(rm, provider)
        assert gated.call() == "one two three"
        assert run_async(gated.acall) == "one two three"
        assert provider.calls == 2
        _is_settled(rm, granted=2)

    def test_the_calls_identity_reaches_the_manager(self) -> None:
        rm, provider = manager(), Provider(HOLDS)
        gated = self.harness.model(rm, provider)

        def ask() -> str:
            with agentrm.identity(agent="planner", tenant="research", priority="background"):
                return gated.call()

        threads = Threads(ask)
        provider.wait_open(1)
        (holder,) = rm.snapshot().holding
        provider.release()
        threads.outcomes()
        assert (holder.agent, holder.tenant, holder.priority) == ("planner", "research", "background")

    def test_the_callers_context_variables_are_seen_inside_the_call(self) -> None:
        rm, provider = manager(), Provider(probe=_variable.get)
        gated = self.harness.model(rm, provider)
        token = _variable.set("the caller's")
        try:
            gated.call()
            list(gated.stream())
        finally:
            _variable.reset(token)
        assert provider.seen == ["the caller's"] * 2

    # --- the cap ---

    def test_no_more_threads_than_lanes_are_at_the_provider(self) -> None:
        rm, provider = manager(2), Provider(*[HOLDS] * 6)
        gated = self.harness.model(rm, provider)
        threads = Threads(*[gated.call] * 6)
        until(rm, lambda s: s.waiting == 4, "4 waiting threads")
        provider.wait_open(2)
        provider.release()
        assert threads.outcomes() == ["one two three"] * 6
        assert provider.peak == 2
        _is_settled(rm, granted=6)

    def test_no_more_tasks_than_lanes_are_at_the_provider(self) -> None:
        rm, provider = manager(2), Provider(*[HOLDS] * 6)
        gated = self.harness.model(rm, provider)

        async def main() -> list[str]:
            tasks = [asyncio.create_task(gated.acall()) for _ in range(6)]
            await _async_until(lambda: rm.statistics().waiting == 4 and provider.open == 2)
            provider.release()
            return await asyncio.gather(*tasks)

        assert run_async(main) == ["one two three"] * 6
        assert provider.peak == 2
        _is_settled(rm, granted=6)

    def test_no_more_streams_than_lanes_are_open(self) -> None:
        rm, provider = manager(2), Provider(*[HOLDS] * 4)
        gated = self.harness.model(rm, provider)
        threads = Threads(*[lambda: "".join(gated.stream())] * 4)
        until(rm, lambda s: s.waiting == 2, "2 waiting streams")
        provider.wait_open(2)
        provider.release()
        assert threads.outcomes() == ["one two three"] * 4
        assert provider.peak == 2
        _is_settled(rm, granted=4)

    def test_no_more_tools_than_lanes_run(self) -> None:
        rm, provider = manager(tools=2), Provider(*[HOLDS] * 5)
        tool = self.harness.tool(rm, lambda: provider.call().text)
        threads = Threads(*[tool.run] * 5)
        until(rm, lambda s: s.waiting == 3, "3 waiting tools")
        provider.wait_open(2)
        provider.release()
        assert threads.outcomes() == ["one two three"] * 5
        assert provider.peak == 2

    def test_sync_tools_awaited_on_a_loop_do_not_block_it_while_they_wait(self) -> None:
        rm, provider = manager(tools=2), Provider(*[HOLDS] * 40)
        tool = self.harness.tool(rm, lambda: provider.call().text)

        async def main() -> list[str]:
            tasks = [asyncio.create_task(tool.arun()) for _ in range(40)]
            await _async_until(lambda: rm.statistics().waiting == 38 and provider.open == 2)
            await asyncio.get_running_loop().run_in_executor(None, int)  # the loop's own threads are free
            provider.release()
            return await asyncio.gather(*tasks)

        assert run_async(main) == ["one two three"] * 40
        assert provider.peak == 2

    # --- the ways out ---

    def test_a_holder_that_raises_lets_the_next_one_in(self) -> None:
        rm, provider = manager(), Provider(Refuse(400), HOLDS)
        gated = self.harness.model(rm, provider)
        assert _is_refusal(_raised(gated.call))
        threads = Threads(gated.call, gated.call)
        provider.wait_open(1)
        provider.release()
        assert threads.outcomes() == ["one two three"] * 2
        _is_settled(rm, granted=3)

    def test_a_task_cancelled_in_flight_lets_the_next_one_in(self) -> None:
        rm, provider = manager(), Provider(HOLDS)
        gated = self.harness.model(rm, provider)

        async def main() -> str:
            first = asyncio.create_task(gated.acall())
            await _async_until(lambda: provider.open == 1)
            second = asyncio.create_task(gated.acall())
            await _async_until(lambda: rm.statistics().waiting == 1)
            first.cancel()
            text = await second
            assert first.cancelled() or isinstance(first.exception(), BaseException)
            return text

        assert run_async(main) == "one two three"
        provider.release()
        _is_settled(rm, granted=2)

    def test_a_task_cancelled_in_the_queue_leaves_it(self) -> None:
        rm, provider = manager(), Provider(HOLDS)
        gated = self.harness.model(rm, provider)

        async def main() -> list[str]:
            first = asyncio.create_task(gated.acall())
            await _async_until(lambda: provider.open == 1)
            second, third = asyncio.create_task(gated.acall()), asyncio.create_task(gated.acall())
            await _async_until(lambda: rm.statistics().waiting == 2)
            second.cancel()
            await _async_until(lambda: rm.statistics().waiting == 1)
            provider.release()
            return list(await asyncio.gather(first, third))

        assert run_async(main) == ["one two three"] * 2
        assert provider.calls == 2, "a call that gave up was made all the same"
        _is_settled(rm, granted=2)

    def test_calls_whose_loop_is_killed_free_their_lanes(self) -> None:
        rm, provider = manager(2), Provider(*[HOLDS] * 3)
        gated = self.harness.model(rm, provider)
        loop = asyncio.new_event_loop()
        orphans: list[asyncio.Task[str]] = []

        async def leave() -> None:
            orphans.extend(loop.create_task(gated.acall()) for _ in range(3))
            await _async_until(lambda: provider.open == 2 and rm.statistics().waiting == 1)

        loop.run_until_complete(leave())
        loop.close()
        while orphans:
            orphans.pop()._log_destroy_pending = False  # type: ignore[attr-defined]
        gc.collect()
        provider.release()
        assert gated.call() == "one two three"
        until(rm, lambda s: s.running == 0 and s.waiting == 0, "free lanes after the loop was closed")

    # --- nesting ---

    def test_a_tool_that_runs_a_sub_agent_ends_at_one_lane(self) -> None:
        rm, provider = manager(1, tools=1), Provider()
        model = self.harness.model(rm, provider)
        inner = self.harness.tool(rm, model.call)
        outer = self.harness.tool(rm, lambda: inner.run() + "!")
        assert Threads(outer.run).outcomes() == ["one two three!"]
        _is_settled(rm, granted=1)

    def test_an_async_tool_that_runs_a_sub_agent_ends_at_one_lane(self) -> None:
        rm, provider = manager(1, tools=1), Provider()
        model = self.harness.model(rm, provider)
        inner = self.harness.async_tool(rm, model.acall)

        async def sub_agent() -> str:
            return "".join(await asyncio.gather(inner.arun(), inner.arun()))

        assert run_async(self.harness.async_tool(rm, sub_agent).arun) == "one two threeone two three"
        assert provider.peak == 1
        _is_settled(rm, granted=2)

    def test_use_after_fork_raises(self) -> None:
        rm, provider = manager(), Provider()
        gated = self.harness.model(rm, provider)
        gated.call()
        assert _raised_in_a_child(gated.call) == "ForkedError"
        assert gated.call() == "one two three", "the parent's manager is as it was"


def _is_settled(rm: agentrm.ResourceManager, *, granted: int) -> None:
    until(rm, lambda s: s.running == 0 and s.waiting == 0, "that nothing is held and nobody waits")
    pool = rm.statistics().pools["default"]
    assert pool.granted == granted, f"{granted} calls took {pool.granted} leases"
    assert pool.zombies == 0


def _raised_in_a_child(fn: Any) -> str:
    """The name of what it raises in a child of this process."""
    if not hasattr(os, "fork"):
        raise NotImplementedError("the system has no fork")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, type(_raised(fn)).__name__.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        name = answer.read()
    os.waitpid(child, 0)
    return name


def _raised(fn: Any) -> BaseException:
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - it is the result
        return error
    raise AssertionError("nothing was raised")


def _is_refusal(error: BaseException | None) -> bool:
    """The provider's own exception, or a framework's wrapper round it."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, Refusal):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


async def _async_until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - the state is a manager's and a provider's; neither knows this loop
        await asyncio.sleep(0.001)
