"""Traps of CrewAI that break gates: hooks, the event bus, time limits, executors, nesting, loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallStartedEvent
from crewai.hooks import HookAborted
from crewai.hooks.dispatch import InterceptionPoint, clear_all
from crewai.hooks.dispatch import on as on_point

import agentrm
from agentrm.adapters.conformance import Hang, Refuse, Reply
from agentrm.adapters.conformance.harness import Threads
from agentrm.scheduling.lease import current_lease
from agentrm.simulation.provider import Behaviour, StubProvider
from tests.plugins.crewai.scenes import (
    AsyncStub,
    AsyncWork,
    Provider,
    StubLLM,
    Work,
    agent_of,
    calling,
    crew_of,
    granted,
    manager,
    openai,
    run_async,
    running,
    until,
)
from tests.waiting import come

HOLDS = Reply(holds=True)


@pytest.fixture(autouse=True)
def _no_hooks_left() -> Iterator[None]:
    yield
    clear_all()


def asker() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.agent


def test_trap_01_a_failing_llm_leaves_no_lane_although_no_hook_says_that_it_ended() -> None:
    heard: list[str] = []
    on_point(InterceptionPoint.PRE_MODEL_CALL)(lambda _: heard.append("before"))
    on_point(InterceptionPoint.POST_MODEL_CALL)(lambda _: heard.append("after"))
    rm, provider = manager(), Provider(Refuse(400))
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider))))
    with pytest.raises(Exception, match="the stub answered 400"):
        crew.kickoff()
    assert heard == ["before"], "CrewAI has changed: the trap is gone"
    assert running(rm) == 0
    assert crew.kickoff().raw == "one two three"


def test_trap_01_a_hook_that_fails_or_aborts_neither_opens_the_gate_nor_keeps_the_lane() -> None:
    rm, provider = manager(), Provider()

    @on_point(InterceptionPoint.PRE_MODEL_CALL)
    def abort(_: Any) -> None:
        raise HookAborted("not today", "a test")

    with pytest.raises(HookAborted):
        rm.attach(crew_of(agent_of(StubLLM(source=provider)))).kickoff()
    assert (running(rm), provider.calls) == (0, 0)
    clear_all()
    on_point(InterceptionPoint.PRE_MODEL_CALL)(lambda _: 1 / 0)
    rm.attach(crew_of(agent_of(StubLLM(source=provider)))).kickoff()
    assert (running(rm), provider.calls, granted(rm)) == (0, 1, 1)


def test_trap_02_an_llm_that_fires_no_events_is_gated_and_charged_all_the_same() -> None:
    class Silent(StubLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            return self.source.call().text

    limits = [{"tokens": 10_000, "per": 3600}]
    rm = manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": limits}})
    assert rm.attach(Silent(source=Provider())).call("hello " * 100) == "one two three"
    (limit,) = rm.statistics().limits.values()
    assert 100 < limit.capacity - limit.level < 400
    assert granted(rm) == 1


def test_trap_03_the_gate_stands_in_the_call_and_not_on_the_event_bus() -> None:
    """Handlers run on a pool of ten threads, after the fact: here they all hang."""
    over = threading.Event()

    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMCallStartedEvent)
        def slow(source: Any, event: Any) -> None:
            over.wait()

        rm = manager(2)
        with StubProvider(Behaviour(service_s=0.02)) as provider:
            llm = rm.attach(openai(provider))
            try:
                assert all(Threads(*[lambda: llm.call("hello")] * 8).outcomes())
            finally:
                over.set()
            assert provider.peak_concurrency <= 2
        assert granted(rm) == 8


def test_trap_07_a_hung_llm_is_reaped_and_the_crew_ends_with_a_time_out() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "zombies": 2})
    provider = Provider(Hang(), Hang())
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider))))
    threads = Threads(crew.kickoff)
    for attempt in (1, 2):
        provider.wait_open(attempt)
        clock.advance(32)
    (error,) = threads.outcomes()
    assert isinstance(error, agentrm.IdleTimeout)
    assert isinstance(error, TimeoutError), "what CrewAI takes for a time-out"
    assert running(rm) == 0
    provider.release()


def test_trap_07_max_execution_time_takes_the_lane_of_a_hung_llm() -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(clock=clock, reaper={"sweep_s": 1}), Provider(Hang())
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider), max_execution_time=1)))
    threads = Threads(crew.kickoff)
    provider.wait_open(1)
    clock.advance(3)
    (error,) = threads.outcomes()  # without this it would wait for the hung thread
    assert isinstance(error, TimeoutError)
    assert running(rm) == 0
    assert provider.calls == 1, "the task is not run again"
    provider.release()


@pytest.mark.parametrize("way", ["akickoff", "kickoff_async"])
def test_trap_08_the_person_goes_first_although_the_loop_has_few_threads(way: str) -> None:
    """By order, not by time: twelve crews wait for one lane on a loop with two threads, then a person comes."""
    rm, provider = manager(), Provider(*[HOLDS] * 14, probe=asker)
    crews = [
        rm.attach(crew_of(agent_of(AsyncStub(source=provider))), agent=f"job {i}", priority="background")
        for i in range(13)
    ]
    person = rm.attach(crew_of(agent_of(AsyncStub(source=provider))), agent="person", priority="interactive")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        tasks = [asyncio.create_task(getattr(crew, way)()) for crew in crews]
        await come(lambda: rm.statistics().waiting == 12 and provider.open == 1)
        tasks.append(asyncio.create_task(getattr(person, way)()))
        await come(lambda: rm.statistics().waiting == 13)
        provider.release()
        await asyncio.gather(*tasks)

    run_async(main)
    assert provider.seen.index("person") == 1
    assert provider.peak == 1


def test_trap_09_identity_reaches_the_tools_that_crewai_runs_in_parallel() -> None:
    rm, provider = manager(tools=2), Provider()
    seen: list[Any] = []

    def look() -> str:
        lease = current_lease()
        assert lease is not None
        seen.append((lease.tenant, lease.agent, lease.priority))
        return "seen"

    tools = [Work(name=name, fn=look) for name in ("one", "two", "three")]
    llm = StubLLM(source=provider, says=[calling("one", "two", "three"), "done"])
    crew = rm.attach(crew_of(agent_of(llm, tools)))
    with agentrm.identity(tenant="research", priority="background"):
        assert crew.kickoff().raw == "done"
    assert seen == [("research", "worker", "background")] * 3
    assert granted(rm, "tools") == 3


@pytest.mark.parametrize("way", ["kickoff", "akickoff", "kickoff_async"])
def test_trap_10_a_crew_in_a_tool_ends_at_one_lane(way: str) -> None:
    rm, provider = manager(1, tools=1), Provider()
    deep = agent_of(StubLLM(source=provider, says=[calling("leaf"), "deep"]), [Work(name="leaf", fn=lambda: "leaf")])
    inner = rm.attach(crew_of(deep))
    top = agent_of(
        StubLLM(source=provider, says=[calling("nest"), "top"]), [Work(name="nest", fn=lambda: inner.kickoff().raw)]
    )
    outer = rm.attach(crew_of(top))
    if way == "kickoff":
        assert Threads(outer.kickoff).outcomes()[0].raw == "top"
    else:
        assert run_async(getattr(outer, way)).raw == "top"
    assert provider.peak == 1
    assert (running(rm), running(rm, "tools"), granted(rm)) == (0, 0, 4)


def test_trap_15_one_llm_serves_several_loops_and_threads_at_once() -> None:
    rm, provider = manager(2), Provider(*[HOLDS] * 12)
    llm = rm.attach(AsyncStub(source=provider))

    async def several() -> list[str]:
        return await asyncio.gather(*[llm.acall("hello") for _ in range(3)])

    loops = Threads(*[lambda: asyncio.run(several())] * 3, *[lambda: llm.call("hello")] * 3)
    until(rm, lambda s: s.waiting == 10, "10 waiting calls")
    provider.release()
    loops.outcomes()
    assert provider.peak == 2
    assert (running(rm), granted(rm)) == (0, 12)


def test_every_way_to_run_a_tool_takes_one_lane() -> None:
    """Native calls use `run`, the text protocol a captured `_run`, and `@tool` goes round `_run`."""
    from crewai.tools import tool as make_tool

    rm = manager(tools=1)

    @make_tool
    def decorated() -> str:
        """Works."""
        return "done"

    for plain in (decorated, Work(fn=lambda: "done")):
        tool = rm.attach(plain)
        assert [tool.run(), tool._run(), run_async(tool.arun), run_async(tool._arun)] == ["done"] * 4
        assert tool.to_structured_tool().invoke({}) == "done"
        assert tool.current_usage_count == plain.current_usage_count + 3, "CrewAI's own count"
    assert (granted(rm, "tools"), running(rm, "tools")) == (10, 0)


def test_an_async_tool_holds_its_lane_until_it_has_worked() -> None:
    from crewai.tools import tool as make_tool

    rm = manager(tools=1)

    @make_tool
    async def decorated() -> int:
        """Works."""
        await asyncio.sleep(0)
        return running(rm, "tools")

    async def look() -> int:
        return running(rm, "tools")

    for tool in (rm.attach(decorated), rm.attach(AsyncWork(fn=look))):
        assert run_async(tool.arun) == 1
    assert rm.attach(decorated).run() == 1
    assert rm.attach(decorated).to_structured_tool().invoke({}) == 1


def test_a_tool_called_by_the_text_protocol_is_gated() -> None:
    rm, provider = manager(tools=1), Provider()
    says = ["Thought: x\nAction: work\nAction Input: {}", "Thought: y\nFinal Answer: done"]
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider, says=says), [Work(fn=lambda: running(rm, "tools"))])))
    assert crew.kickoff().raw == "done"
    assert granted(rm, "tools") == 1
