"""Traps of LangChain and LangGraph that break gates: callbacks, rate limiters, order, nesting, executors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain.agents.middleware import ModelRetryMiddleware, SummarizationMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ModelTimeoutError
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.rate_limiters import BaseRateLimiter

import agentrm
from agentrm.adapters.conformance import Hang, Provider, Refuse, Reply
from agentrm.adapters.conformance.harness import Threads
from agentrm_langchain import AgentRMMiddleware, ModelIdleTimeout, tool_node
from tests.plugins.langchain.scenes import (
    HELLO,
    Scripted,
    agent_of,
    calling,
    granted,
    manager,
    run_async,
    running,
    tool_of,
    until,
)
from tests.plugins.langchain.stub_models import AsyncStubChat, StubChat
from tests.waiting import come

HOLDS = Reply(holds=True)


class _Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.seen.append("start")

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.seen.append("end")

    def on_llm_error(self, *_: Any, **__: Any) -> None:
        self.seen.append("error")


def test_trap_01_a_cancelled_call_frees_its_lane_although_no_callback_says_that_it_ended() -> None:
    rm, provider, recorder = manager(), Provider(HOLDS), _Recorder()
    model = rm.attach(AsyncStubChat(provider=provider))

    async def main() -> None:
        task = asyncio.create_task(model.ainvoke("hello", {"callbacks": [recorder]}))
        await come(lambda: provider.open == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert running(rm) == 0
        assert (await model.ainvoke("hello")).text == "one two three"

    run_async(main)
    assert recorder.seen == ["start"], "LangChain has changed: the trap is gone"


def test_trap_01_a_callback_that_raises_neither_opens_the_gate_nor_keeps_the_lane() -> None:
    class Raises(BaseCallbackHandler):
        raise_error = True

        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("from the callback")

    rm, provider = manager(), Provider()
    model = rm.attach(StubChat(provider=provider))
    with pytest.raises(RuntimeError, match="from the callback"):
        model.invoke("hello", {"callbacks": [Raises()]})
    assert (running(rm), provider.calls) == (0, 0)
    assert model.invoke("hello").text == "one two three"


def test_trap_02_a_rate_limiter_that_says_no_is_ignored_by_langchain_and_the_gate_is_not() -> None:
    class SaysNo(BaseRateLimiter):
        def acquire(self, *, blocking: bool = True) -> bool:
            return False

        async def aacquire(self, *, blocking: bool = True) -> bool:
            return False

    rm, provider = manager(), Provider(HOLDS)
    model = rm.attach(StubChat(provider=provider, rate_limiter=SaysNo()), wait_max=0)
    holder = Threads(lambda: model.invoke("hello"))
    provider.wait_open(1)
    with pytest.raises(agentrm.QueueTimeout):
        model.invoke("hello")
    with pytest.raises(agentrm.QueueTimeout):
        list(model.stream("hello"))
    assert provider.calls == 1, "a call that was not admitted was made"
    provider.release()
    holder.outcomes()


def test_trap_02_an_answer_from_the_cache_takes_no_lane_and_costs_nothing() -> None:
    rm, provider = manager(), Provider()
    model = rm.attach(StubChat(provider=provider, cache=InMemoryCache()))
    assert model.invoke("hello").text == model.invoke("hello").text
    agent = agent_of(model, (), AgentRMMiddleware(rm))
    agent.invoke(HELLO)
    agent.invoke(HELLO)
    assert provider.calls <= 2
    assert granted(rm) == provider.calls


def test_trap_03_a_middlewares_own_calls_are_gated_with_its_model() -> None:
    rm, provider = manager(), Provider()
    model = Scripted(says=[AIMessage("a summary")], provider=provider)
    summariser = rm.attach(SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 2)))
    talk = [HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d"), HumanMessage("e")]
    agent_of(model, (), summariser, AgentRMMiddleware(rm)).invoke({"messages": talk})
    assert provider.calls == 2, "one summary and one answer"
    assert granted(rm) == 2


def test_trap_04_middleware_over_a_gated_model_does_not_deadlock_at_one_lane() -> None:
    rm, provider = manager(), Provider()
    agent = agent_of(rm.attach(AsyncStubChat(provider=provider)), (), AgentRMMiddleware(rm))
    assert agent.invoke(HELLO)["messages"][-1].text == "one two three"
    assert run_async(lambda: agent.ainvoke(HELLO))["messages"][-1].text == "one two three"
    assert "one two three" in "".join(part[0].text for part in agent.stream(HELLO, stream_mode="messages"))
    assert granted(rm) == provider.calls == 3


def test_trap_05_nothing_is_held_while_another_middleware_waits_to_try_again() -> None:
    rm = manager(pools={"default": {"retry": {"attempts": 1}}})
    provider, held = Provider(Refuse(500)), []

    def look(_: Exception) -> bool:
        held.append(running(rm))
        return True

    retry = ModelRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False, retry_on=look)
    agent = agent_of(AsyncStubChat(provider=provider), (), retry, AgentRMMiddleware(rm))
    assert agent.invoke(HELLO)["messages"][-1].text == "one two three"
    assert held == [0]
    assert granted(rm) == provider.calls == 2, "one lease for each attempt"


def test_trap_05_a_refusal_is_waited_out_and_never_becomes_an_answer() -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(clock=clock), Provider(Refuse(429, retry_after=3.0))
    retry = ModelRetryMiddleware(max_retries=0)
    agent = agent_of(AsyncStubChat(provider=provider), (), retry, AgentRMMiddleware(rm))
    threads = Threads(lambda: agent.invoke(HELLO)["messages"][-1].text)
    until(rm, lambda s: s.waiting == 1 and s.running == 0, "a call that waits and holds nothing")
    clock.advance(5)
    assert threads.outcomes() == ["one two three"]


def test_trap_06_both_twins_work_and_an_async_tool_node_does_not_block_the_loop() -> None:
    rm, provider = manager(tools=2), Provider(*[HOLDS] * 4)
    work = tool_of(lambda: provider.call().text)
    agent = agent_of(Scripted(says=[calling("work"), AIMessage("done")]), [work], AgentRMMiddleware(rm))
    free = Threads(lambda: provider._wait(lambda: provider.open == 1, "a tool at work") or provider.release())
    assert agent.invoke(HELLO)["messages"][-1].text == "done"
    free.outcomes()

    provider = Provider(*[HOLDS] * 4)
    node = tool_node(rm, [tool_of(lambda: provider.call().text)])

    async def main() -> Any:
        running_node = asyncio.create_task(_in_graph(node).ainvoke({"messages": [calling(*["work"] * 4)]}))
        await come(lambda: provider.open == 2 and rm.statistics().waiting == 2)
        provider.release()
        return await running_node

    assert [m.content for m in run_async(main)["messages"][1:]] == ["one two three"] * 4
    assert provider.peak == 2


def test_trap_07_a_cancelled_sync_tool_is_a_zombie_until_its_thread_ends() -> None:
    rm, provider = manager(tools=1), Provider(HOLDS)
    model = Scripted(says=[calling("work"), AIMessage("done")])
    agent = agent_of(model, [tool_of(lambda: provider.call().text)], AgentRMMiddleware(rm))

    async def main() -> None:
        task = asyncio.create_task(agent.ainvoke(HELLO))
        await come(lambda: provider.open == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_async(main)
    assert rm.statistics().pools["tools"].zombies == 1
    provider.release()
    until(rm, lambda s: s.pools["tools"].zombies == 0, "the end of the zombie")


def test_trap_07_a_cancelled_model_without_async_code_is_one_too() -> None:
    rm, provider = manager(), Provider(HOLDS)
    model = rm.attach(StubChat(provider=provider))

    async def main() -> None:
        task = asyncio.create_task(model.ainvoke("hello"))
        await come(lambda: provider.open == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert rm.statistics().pools["default"].zombies == 1
        assert (await model.ainvoke("hello")).text == "one two three", "the lane itself is free"

    run_async(main)
    provider.release()
    until(rm, lambda s: s.pools["default"].zombies == 0, "the end of the zombie")


@pytest.mark.parametrize("kind", [AsyncStubChat, StubChat])
def test_trap_08_a_reap_comes_out_as_a_model_timeout_and_never_as_a_cancellation(kind: type) -> None:
    clock, recorder = agentrm.VirtualClock(), _Recorder()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "recover": 0})
    provider = Provider(Hang())
    agent = agent_of(kind(provider=provider), (), AgentRMMiddleware(rm))

    async def main() -> BaseException:
        call = asyncio.create_task(agent.ainvoke(HELLO, {"callbacks": [recorder]}))
        await come(lambda: provider.open == 1)
        clock.advance(32)
        assert running(rm) == 0
        (error,) = await asyncio.gather(call, return_exceptions=True)
        return error

    error = run_async(main)
    assert isinstance(error, ModelIdleTimeout)
    assert isinstance(error, agentrm.IdleTimeout) and isinstance(error, ModelTimeoutError)
    assert error.is_retryable and error.pool == "default"
    assert "error" in recorder.seen, "tracing sees that the run ended"
    provider.release()


def test_trap_09_a_hung_sync_node_does_not_keep_its_caller() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "recover": 0})
    provider = Provider(Hang())
    agent = agent_of(StubChat(provider=provider), (), AgentRMMiddleware(rm))
    threads = Threads(lambda: list(agent.stream(HELLO)))
    provider.wait_open(1)
    clock.advance(32)
    (error,) = threads.outcomes()  # although the provider still hangs
    assert provider.open == 1
    assert isinstance(error, ModelIdleTimeout)
    provider.release()


def test_trap_11_waiting_calls_leave_the_loops_threads_alone() -> None:
    rm, provider = manager(1), Provider(*[HOLDS] * 40)
    model = rm.attach(StubChat(provider=provider))

    async def main() -> None:
        calls = [asyncio.create_task(model.ainvoke("hello")) for _ in range(20)]
        calls += [asyncio.create_task(_joined(model)) for _ in range(20)]
        await come(lambda: rm.statistics().waiting == 39)
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        provider.release()
        assert len(await asyncio.gather(*calls)) == 40

    run_async(main)
    assert provider.peak == 1


def test_trap_12_a_sub_agent_within_a_tool_ends_at_one_lane() -> None:
    rm = manager(1, tools=1)
    inner_model = Scripted(says=[calling("look"), AIMessage("found it")])
    inner = agent_of(inner_model, [tool_of(lambda: "a look", "look")], AgentRMMiddleware(rm))

    def research() -> str:
        return inner.invoke(HELLO)["messages"][-1].text

    async def aresearch() -> str:
        return (await inner.ainvoke(HELLO))["messages"][-1].text

    for fn in (research, aresearch):
        inner_model.heard.clear()
        model = Scripted(says=[calling("research"), AIMessage("done")])
        outer = agent_of(model, [tool_of(fn, "research")], AgentRMMiddleware(rm))
        messages = run_async(lambda outer=outer: outer.ainvoke(HELLO))["messages"]
        assert [message.text for message in messages[-2:]] == ["found it", "done"]
    inner_model.heard.clear()
    model = Scripted(says=[calling("research"), AIMessage("done")])
    outer = agent_of(model, [tool_of(research, "research")], AgentRMMiddleware(rm))
    assert outer.invoke(HELLO)["messages"][-1].text == "done"
    assert rm.statistics().running == 0


async def _joined(model: Any) -> str:
    return "".join([chunk.text async for chunk in model.astream("hello")])


def _in_graph(node: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    return StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
