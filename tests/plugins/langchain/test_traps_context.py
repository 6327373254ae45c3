"""Traps of LangChain and LangGraph around time limits, context variables, streams, errors and usage."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode
from langgraph.types import TimeoutPolicy

import agentrm
from agentrm.adapters.conformance import Hang, Provider, Refuse, Reply
from agentrm.adapters.conformance.harness import Threads
from agentrm_langchain import AgentRMMiddleware, gate_model, tool_node
from tests.plugins.langchain.scenes import (
    HELLO,
    Scripted,
    agent_of,
    calling,
    manager,
    run_async,
    running,
    tool_of,
    until,
)
from tests.plugins.langchain.stub_models import AsyncStubChat, StubChat
from tests.waiting import come

HOLDS = Reply(holds=True)


def graph_of(node: Any, **more: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node, **more).add_edge(START, "node").compile()


@pytest.mark.parametrize("kind", [AsyncStubChat, StubChat])
def test_trap_10_a_queued_call_keeps_its_node_from_idling_out(kind: type) -> None:
    rm, provider = manager(), Provider(HOLDS)
    model, beats = rm.attach(kind(provider=provider)), []

    async def node(state: Any, runtime: Any = None) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = graph_of(node, timeout=TimeoutPolicy(idle_timeout=2.0, refresh_on="heartbeat"))

    async def main() -> Any:
        holder = asyncio.create_task(model.ainvoke("hold"))
        await come(lambda: provider.open == 1)
        waiting = asyncio.create_task(graph.ainvoke(HELLO))
        await come(lambda: rm.statistics().waiting == 1)
        loop = asyncio.get_running_loop()
        loop.call_later(3.0, beats.append, "longer than the idle limit")
        await come(lambda: bool(beats))
        assert not waiting.done(), "the node was ended while its call was queued"
        provider.release()
        await holder
        return await waiting

    assert run_async(main)["messages"][-1].text == "one two three"


@dataclass
class Who:
    agent: str
    priority: str
    tenant: str = "research"
    session: str = "s-1"


def test_trap_13_an_identity_reaches_nodes_tools_and_their_threads() -> None:
    for way in ("context", "identity", "config"):
        rm, provider = manager(tools=4), Provider(*[HOLDS] * 8)
        work = tool_of(lambda p=provider: p.call().text)
        agent = agent_of(
            Scripted(says=[calling("work", "work"), AIMessage("done")]),
            [work],
            AgentRMMiddleware(rm),
            context_schema=Who if way == "context" else None,
        )

        def ask(way: str = way, agent: Any = agent) -> Any:
            if way == "context":
                return agent.invoke(HELLO, context=Who("planner", "background"))
            if way == "config":
                said = {"agentrm_agent": "planner", "agentrm_priority": "background"}
                return agent.invoke(HELLO, {"metadata": {**said, "agentrm_tenant": "research"}})
            with agentrm.identity(agent="planner", priority="background", tenant="research"):
                return agent.invoke(HELLO)

        threads = Threads(ask)
        provider.wait_open(2)
        holders = rm.snapshot().holding
        provider.release()
        threads.outcomes()
        tools = [holder for holder in holders if holder.pool == "tools"]
        assert [(h.agent, h.priority, h.tenant) for h in tools] == [("planner", "background", "research")] * 2, way


def test_trap_14_a_stream_that_is_kept_but_not_read_gives_its_lane_back() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    provider = Provider(Reply(tuple("abcdef")))
    stream = rm.attach(StubChat(provider=provider)).stream("hello")
    next(stream)
    clock.advance(32)
    assert running(rm) == 0
    provider.wait_closed()
    assert provider.abandoned == 1, "the connection upstream is closed, not left to send to nobody"
    with pytest.raises(agentrm.IdleTimeout):
        next(stream)
    until(rm, lambda s: s.pools["default"].zombies == 0, "no zombie")


def test_trap_14_so_does_an_async_one() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    for kind in (AsyncStubChat, StubChat):
        provider = Provider(Reply(tuple("abcdef")))
        model = rm.attach(kind(provider=provider))

        async def main(model: Any = model, provider: Provider = provider) -> None:
            stream = model.astream("hello")
            await stream.__anext__()
            clock.advance(32)
            assert running(rm) == 0
            await come(lambda: provider.abandoned == 1)
            assert (await model.ainvoke("next")).text == "one two three"
            with pytest.raises(agentrm.IdleTimeout):
                await stream.__anext__()

        run_async(main)
        assert rm.statistics().pools["default"].zombies == 0


def test_trap_15_nothing_leaks_to_the_consumer_between_chunks() -> None:
    rm, provider = manager(2), Provider(*[Reply(tuple("abc"))] * 4)
    model = rm.attach(AsyncStubChat(provider=provider))
    before = contextvars.copy_context()
    stream = model.stream("hello")
    next(stream)
    assert agentrm.current_lease() is None
    assert dict(contextvars.copy_context()) == dict(before)
    assert model.invoke("a call of its own").text, "not taken for a part of the stream"
    assert rm.statistics().pools["default"].granted == 2
    contextvars.Context().run(stream.close)  # in another context: reset() would raise there
    assert running(rm) == 0

    async def main() -> None:
        stream = model.astream("hello")
        await contextvars.Context().run(lambda: asyncio.ensure_future(stream.__anext__()))
        assert agentrm.current_lease() is None
        await contextvars.Context().run(lambda: asyncio.ensure_future(stream.aclose()))

    run_async(main)
    gc.collect()
    assert running(rm) == 0


def test_trap_16_a_full_queue_is_not_a_mistake_of_the_model() -> None:
    rm, provider = manager(tools=1), Provider(HOLDS, Refuse(500))
    work = tool_of(lambda: provider.call().text)
    nodes = [
        tool_node(rm, [work], handle_tool_errors=True, wait_max=0),
        rm.attach(ToolNode([work], handle_tool_errors=True), wait_max=0),
    ]
    holder = Threads(lambda: rm.attach(work).invoke({}))
    provider.wait_open(1)
    for node in nodes:
        with pytest.raises(agentrm.QueueTimeout):
            graph_of(node).invoke({"messages": [calling("work")]})
        with pytest.raises(agentrm.QueueTimeout):
            run_async(lambda node=node: graph_of(node).ainvoke({"messages": [calling("work")]}))
    provider.release()
    holder.outcomes()
    (_, answer) = graph_of(nodes[0]).invoke({"messages": [calling("work")]})["messages"]
    assert isinstance(answer, ToolMessage) and answer.status == "error", (
        "the tool's own errors go to the model as before"
    )


def test_trap_17_what_other_middleware_does_to_the_messages_passes_through() -> None:
    class Shortens(AgentMiddleware):
        """For this call only."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(messages=request.messages[-2:]))

    class Compacts(AgentMiddleware):
        """For good."""

        def before_model(self, state: Any, runtime: Any) -> Any:
            return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *state["messages"][-3:]]}

    talk = {"messages": [HumanMessage(str(i)) for i in range(6)]}
    for middleware, heard, kept in ((Shortens(), 2, 7), (Compacts(), 3, 4)):
        model = Scripted(says=[AIMessage("done")])
        state = agent_of(model, (), middleware, AgentRMMiddleware(manager())).invoke(talk)
        assert len(model.heard[0]) == heard
        assert len(state["messages"]) == kept


def test_trap_20_use_is_read_where_langchain_keeps_it_and_estimated_where_it_is_not() -> None:
    def charged(reply: Reply, way: str) -> int:
        limits = [{"tokens": 100_000, "per": 60}]
        rm = manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": limits}})
        model = gate_model(rm, AsyncStubChat(provider=Provider(reply)))
        ways = {
            "invoke": lambda: model.invoke("hello"),
            "stream": lambda: list(model.stream("hello")),
            "ainvoke": lambda: run_async(lambda: model.ainvoke("hello")),
            "batch": lambda: model.batch(["hello"]),
            "structured": lambda: model.with_structured_output({"title": "x", "type": "object", "properties": {}}),
        }
        ways[way]()
        (limit,) = rm.statistics().limits.values()
        return limit.capacity - limit.level

    for way in ("invoke", "stream", "ainvoke", "batch"):
        assert charged(Reply(("words ",), usage=(400, 100)), way) == 500
        assert 100 < charged(Reply(("words " * 100,), usage=None), way) < 300


@pytest.mark.parametrize("kind", [AsyncStubChat, StubChat])
def test_a_hung_stream_within_invoke_is_reaped_too(kind: type) -> None:
    """An agent streams inside `invoke` when a consumer of messages listens."""
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    provider = Provider(Hang(after=1))
    agent = agent_of(kind(provider=provider), (), AgentRMMiddleware(rm))

    async def main() -> BaseException:
        async def read() -> None:
            async for _ in agent.astream(HELLO, stream_mode="messages"):
                asyncio.get_running_loop().call_soon(clock.advance, 32)  # when the next chunk is waited for

        (error,) = await asyncio.gather(asyncio.create_task(read()), return_exceptions=True)
        return error

    assert isinstance(run_async(main), agentrm.IdleTimeout)
    assert running(rm) == 0
    provider.release()
    provider.wait_closed()
    until(rm, lambda s: s.pools["default"].zombies == 0, "no zombie")
