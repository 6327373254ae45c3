"""Traps 4, 5, 6 and 12, and limits, with CrewAI's real OpenAI completion against a loopback provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from crewai.llms.retry import _ThrottlingErrorClassifier as Classifier
from crewai.utilities.agent_utils import is_context_length_exceeded, is_native_tool_calling_unsupported_error
from openai import RateLimitError

import agentrm
from agentrm.adapters.conformance import Refuse, Reply
from agentrm.adapters.conformance.harness import Threads
from agentrm.simulation.provider import Behaviour, Limit, StubProvider, StubRequest, ToolCall
from tests.plugins.crewai.scenes import (
    Provider,
    StubLLM,
    Work,
    agent_of,
    crew_of,
    granted,
    manager,
    openai,
    paused,
    run_async,
    running,
    until,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def refusing() -> Iterator[StubProvider]:
    with StubProvider([Behaviour("rate", retry_after_s=0.05), *[Behaviour()] * 9]) as provider:
        yield provider


def _error_of(rm: agentrm.ResourceManager, **asked: Any) -> Exception:
    with pytest.raises(agentrm.errors.AgentRMError) as caught:
        rm.lease(**asked).acquire()
    return caught.value


def test_trap_04_no_error_of_ours_is_taken_for_throttling_or_for_a_full_window() -> None:
    """By CrewAI's own classifiers, which look for words in the text and at the causes."""
    clock = agentrm.VirtualClock()
    rm = manager(
        clock=clock,
        pools={"default": {"limits": [{"tokens": 100, "per": 60}]}},
        waiting={"max_queued": 1},
        budgets={"agent.poor": {"tokens": 10}},
    )
    llm = rm.attach(StubLLM(source=Provider(Refuse(429, code="insufficient_quota"))))
    errors: list[Any] = [_error_of(rm, tokens=1000), _error_of(rm, agent="poor", tokens=50)]
    with pytest.raises(Exception, match="the stub answered 429"):
        llm.call("hello")
    errors += Threads(lambda: llm.call("hello")).outcomes()  # closed for good by the refusal before
    rm.reopen()
    rm.lease(tokens=1).acquire()
    errors.append(_error_of(rm, tokens=1, wait_max=0))
    waiting = Threads(rm.lease(tokens=1).acquire)
    until(rm, lambda s: s.waiting == 1, "one that waits")
    errors.append(_error_of(rm, tokens=1))
    rm.close()
    errors += waiting.outcomes()
    for error in errors:
        assert isinstance(error, agentrm.errors.AgentRMError), error
        assert not Classifier.is_throttling_error(error), error
        assert not is_context_length_exceeded(error), error
        assert not is_native_tool_calling_unsupported_error(error), error
    assert len({type(error) for error in errors}) >= 5, errors


@pytest.mark.parametrize("way", ["call", "acall", "stream"])
def test_trap_05_the_providers_hint_is_waited_for_and_each_request_has_a_lease(
    refusing: StubProvider, way: str
) -> None:
    """CrewAI itself would wait a second, and its client would ask behind its back."""
    rm = manager()
    llm = openai(refusing, max_retries=2)
    gated = rm.attach(llm)
    ways = {
        "call": lambda: gated.call("hello"),
        "acall": lambda: run_async(lambda: gated.acall("hello")),
        "stream": lambda: "".join(frame.content for frame in gated.stream_events("hello")),
    }
    assert ways[way]()
    assert refusing.statistics().arrived == granted(rm) == 2
    assert llm._client.max_retries == llm.max_retries == 2, "the user's own LLM is as it was"


def test_trap_05_a_hint_is_waited_for_on_the_managers_clock_alone() -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(clock=clock), Provider(Refuse(429, retry_after=3600.0))
    threads = Threads(rm.attach(crew_of(agent_of(StubLLM(source=provider)))).kickoff)
    until(rm, lambda s: s.waiting == 1 and s.running == 0, "a call that waits and holds nothing")
    clock.advance(3700)
    assert threads.outcomes()[0].raw == "one two three"


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_trap_06_retries_do_not_stack(way: str) -> None:
    """Client 3 x CrewAI 3 x agent 3 would be 27 requests."""
    rm = manager(pools={"default": {"retry": {"attempts": 2}}})
    with StubProvider(Behaviour("rate", retry_after_s=0.01)) as provider:
        crew = rm.attach(crew_of(agent_of(openai(provider))))
        with pytest.raises(RateLimitError):
            crew.kickoff() if way == "kickoff" else run_async(crew.akickoff)
        assert provider.statistics().arrived == granted(rm) == 2
    assert running(rm) == 0


def test_trap_06_what_is_no_providers_failure_is_still_the_agents_to_retry() -> None:
    provider, failures = Provider(), [RuntimeError("mine"), RuntimeError("mine")]

    class Flaky(StubLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if failures:
                raise failures.pop()
            return super().call(messages, *args, **kwargs)

    assert manager().attach(crew_of(agent_of(Flaky(source=provider)))).kickoff().raw == "one two three"
    assert not failures


def test_trap_06_a_quota_is_final_and_says_so_at_once() -> None:
    rm = manager()
    with StubProvider(Behaviour("quota")) as provider:
        llm = rm.attach(openai(provider))
        with pytest.raises(RateLimitError):
            llm.call("hello")
        with pytest.raises(agentrm.ScopeClosed):
            llm.call("hello")
        assert provider.statistics().arrived == 1


def test_trap_12_use_is_reported_as_the_provider_counted_it() -> None:
    """CrewAI would count an LLM that two agents share two times."""
    rm = manager()
    with StubProvider(Behaviour(output_tokens=10)) as provider:
        llm = openai(provider)
        crew = rm.attach(crew_of(agent_of(llm, role="one"), agent_of(llm, role="two")))
        output = crew.kickoff()
        records = provider.log
    used = sum(record.prompt_tokens + record.output_tokens for record in records)
    assert output.token_usage.total_tokens == crew.usage_metrics.total_tokens == used > 0
    assert output.token_usage.successful_requests == len(records) == 2
    assert crew.agents[0].llm.get_token_usage_summary().total_tokens == used


def test_trap_12_what_is_charged_is_what_the_provider_counted() -> None:
    limits = [{"tokens": 100_000, "per": 3600}]
    with StubProvider(Behaviour(output_tokens=200)) as provider:
        for streams in (False, True):
            rm = manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": limits}})
            rm.attach(openai(provider, stream=streams)).call("hello")
            (limit,) = rm.statistics().limits.values()
            record = provider.log[-1]
            charged = limit.capacity - limit.level
            assert charged == record.prompt_tokens + record.output_tokens or (streams and 100 < charged < 500)


def test_the_cap_holds_at_the_server_for_crews_threads_and_tasks_together() -> None:
    def plan(request: StubRequest) -> Behaviour:
        return Behaviour(service_s=0.01, tool_calls=(ToolCall("work"),), text="done")

    rm = manager(2, tools=1)
    with StubProvider(plan) as provider:
        llm = openai(provider)
        tools = [Work(fn=lambda: running(rm, "tools"))]
        crews = [rm.attach(crew_of(agent_of(llm, tools, role=f"agent {i}"))) for i in range(6)]

        async def main() -> list[Any]:
            return await asyncio.gather(*[crew.akickoff() for crew in crews[3:]])

        threads = Threads(*[crew.kickoff for crew in crews[:3]])
        assert [output.raw for output in run_async(main)] == ["done"] * 3
        assert [output.raw for output in threads.outcomes()] == ["done"] * 3
        assert provider.peak_concurrency <= 2
        assert provider.statistics().arrived == granted(rm) == 12
    assert granted(rm, "tools") == 6
    assert (running(rm), running(rm, "tools")) == (0, 0)


def test_nobody_fails_of_a_limit_that_is_tighter_than_the_demand() -> None:
    rm = manager(4)
    with StubProvider(limits=[Limit(requests=3, per_s=0.3)]) as provider:
        llm = rm.attach(openai(provider))

        async def main() -> list[Any]:
            return await asyncio.gather(*[llm.acall("hello") for _ in range(8)])

        assert all(run_async(main))


def test_max_rpm_lets_a_crew_wait_without_a_lock_a_lane_or_a_thread_of_the_loop() -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(4, clock=clock), Provider()
    agents = [agent_of(StubLLM(source=provider), role=f"agent {i}") for i in range(3)]
    crew = rm.attach(crew_of(*agents, tasks=1, max_rpm=2))
    threads = Threads(crew.kickoff)
    provider.wait_calls(2, lambda: None)
    until(rm, lambda s: s.running == 0, "that nothing is held")
    paused(rm)
    clock.advance(59)
    assert provider.calls == 2
    clock.advance(2)
    (output,) = threads.outcomes()
    assert output.raw == "one two three"
    assert provider.calls == 3


def test_max_rpm_of_an_agent_is_its_own_and_holds_in_every_minute() -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(clock=clock), Provider(*[Reply()] * 4)
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider), max_rpm=1), tasks=3))
    threads = Threads(crew.kickoff)
    for calls in (1, 2, 3):
        provider.wait_calls(calls, lambda: None)
        assert provider.calls == calls
        if calls < 3:
            paused(rm)
            clock.advance(60)
    threads.outcomes()


@pytest.mark.parametrize("said", [0, -1])
def test_a_limit_of_no_tokens_counts_as_none(said: int) -> None:
    rm = manager()
    with StubProvider() as provider:
        rm.attach(openai(provider, max_tokens=said)).call("hello")
        assert granted(rm) == provider.statistics().arrived == 1


@pytest.mark.parametrize("said", [float("inf"), float("nan"), 1e300, 10**30])
def test_a_limit_that_no_reply_reaches_counts_as_none(said: float) -> None:
    class Own(StubLLM):
        max_tokens: Any = None

    rm = manager(pools={"default": {"limits": [{"tokens": 1000, "per": 60}]}})
    assert rm.attach(Own(source=Provider(), max_tokens=said)).call("hello") == "one two three"
