"""The LangChain adapter under the suite that every adapter runs, with real models, tools and agents of LangChain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool

from agentrm.adapters.conformance import Conformance, Provider
from agentrm.context.compact import Compactor
from agentrm.context.convert_langchain import from_langchain, to_langchain
from agentrm.context.messages import Message
from agentrm.context.sessions import SessionStore
from agentrm_langchain import AgentRMMiddleware, CompactionMiddleware, gate_model, gate_tool
from agentrm_langchain.checkpoint import SessionSaver
from agentrm_langchain.hibernation import hibernate_thread, restore_thread
from tests.plugins.langchain.stub_models import AsyncStubChat


class _Model:
    def __init__(self, model: Any) -> None:
        self.model = model

    def call(self) -> str:
        return self.model.invoke("hello").text

    async def acall(self) -> str:
        return (await self.model.ainvoke("hello")).text

    def stream(self) -> Iterator[str]:
        for chunk in self.model.stream("hello"):
            if chunk.text:  # LangChain ends a stream with an empty chunk
                yield chunk.text

    async def astream(self) -> AsyncIterator[str]:
        async for chunk in self.model.astream("hello"):
            if chunk.text:
                yield chunk.text


class _Agent:
    """An agent whose model is gated, under middleware of the same manager."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def call(self) -> str:
        return self.agent.invoke({"messages": [HumanMessage("hello")]})["messages"][-1].text

    async def acall(self) -> str:
        return (await self.agent.ainvoke({"messages": [HumanMessage("hello")]}))["messages"][-1].text


class _Tool:
    def __init__(self, tool: Any) -> None:
        self.tool = tool

    def run(self) -> str:
        return self.tool.invoke({})

    async def arun(self) -> str:
        return await self.tool.ainvoke({})


class _Talk:
    """A thread of an agent, put to sleep and brought back."""

    def __init__(self, rm: Any, provider: Provider, store: SessionStore, thread: str = "talk") -> None:
        self.saver, self.thread = SessionSaver(store), {"configurable": {"thread_id": thread}}
        model = AsyncStubChat(provider=provider)
        self.agent = create_agent(model, checkpointer=self.saver, middleware=[AgentRMMiddleware(rm)])

    async def say(self, text: str) -> str:
        return (await self.agent.ainvoke({"messages": [HumanMessage(text)]}, self.thread))["messages"][-1].text

    def texts(self) -> list[str]:
        return [message.text for message in self.agent.get_state(self.thread).values["messages"]]

    async def hibernate(self) -> Path:
        return hibernate_thread(self.saver, "talk")


class LangChainHarness:
    def compacted(self, messages: list[Message], max_tokens: int) -> list[Message]:
        ours = CompactionMiddleware(max_tokens, keep_history=False, compactor=Compactor(embedder=None))
        update = ours.before_model({"messages": to_langchain(messages)}, None)
        return messages if update is None else from_langchain(update["messages"][1:])

    def conversation(self, rm: Any, provider: Provider, store: SessionStore) -> Any:
        return _Talk(rm, provider, store)

    def restored(self, rm: Any, provider: Provider, store: SessionStore, file: Path, name: str | None) -> Any:
        return _Talk(rm, provider, store, restore_thread(SessionSaver(store), file, as_thread=name))

    def model(self, rm: Any, provider: Provider) -> Any:
        return _Model(rm.attach(AsyncStubChat(provider=provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        model = gate_model(rm, rm.attach(AsyncStubChat(provider=provider)))
        return _Agent(create_agent(model, middleware=[AgentRMMiddleware(rm)]))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        return _Tool(rm.attach(StructuredTool.from_function(fn, name="work", description="works")))

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        tool = StructuredTool.from_function(coroutine=fn, name="work", description="works")
        return _Tool(gate_tool(rm, tool))


class TestLangChain(Conformance):
    harness = LangChainHarness()
