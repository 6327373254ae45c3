"""The AutoGen adapter under the suite that every adapter runs, with AutoGen's own tools, workbenches and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_core.models import CreateResult

from agentrm.adapters.conformance import AsyncOnly, Conformance, Provider
from agentrm.context.compact import Compactor
from agentrm.context.convert_autogen import from_autogen, to_autogen
from agentrm.context.messages import Message
from agentrm.context.sessions import SessionStore
from agentrm_autogen import CompactingContext, GatedClient, hibernate, restore
from tests.plugins.autogen.scenes import ASK, Client, agent_of, tool_of, workbench_of


class _Model(AsyncOnly):
    def __init__(self, client: Any) -> None:
        self.client = client

    async def acall(self) -> str:
        return (await self.client.create(ASK)).content

    async def astream(self) -> AsyncIterator[str]:
        async for chunk in self.client.create_stream(ASK):
            if not isinstance(chunk, CreateResult):  # repeats the text
                yield chunk


class _Agent(_Model):
    """An agent whose client is gated, itself attached to the same manager."""

    async def acall(self) -> str:
        return (await self.client.run(task="hello")).messages[-1].content


class _Tool:
    def __init__(self, workbench: Any) -> None:
        self.workbench = workbench

    def run(self) -> str:
        return asyncio.run(self.arun())

    async def arun(self) -> str:
        return (await self.workbench.call_tool("work")).to_text()


class _Talk:
    """An agent that is put to sleep and brought back."""

    def __init__(self, rm: Any, provider: Provider, store: SessionStore) -> None:
        self.agent, self.store = rm.attach(agent_of(Client(provider))), store

    async def say(self, text: str) -> str:
        return (await self.agent.run(task=text)).messages[-1].content

    def texts(self) -> list[str]:
        return [message.content for message in self.agent.model_context._messages]

    async def hibernate(self) -> Path:
        return await hibernate(self.store, self.agent, "talk")


class AutoGenHarness:
    def conversation(self, rm: Any, provider: Provider, store: SessionStore) -> Any:
        return _Talk(rm, provider, store)

    def restored(self, rm: Any, provider: Provider, store: SessionStore, file: Path, name: str | None) -> Any:
        talk = _Talk(rm, provider, store)
        asyncio.run(restore(store, file, talk.agent, as_session=name))
        return talk

    def compacted(self, messages: list[Message], max_tokens: int) -> list[Message]:
        initial = to_autogen(messages)
        context = CompactingContext(max_tokens, initial_messages=initial, compactor=Compactor(embedder=None))
        return from_autogen(asyncio.run(context.get_messages()))

    def model(self, rm: Any, provider: Provider) -> Any:
        return _Model(rm.attach(Client(provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        return _Agent(rm.attach(agent_of(GatedClient(rm, rm.attach(Client(provider))))))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        def work() -> str:
            return fn()

        return _Tool(rm.attach(workbench_of(tool_of(work))))

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        async def work() -> str:
            return await fn()

        return _Tool(rm.attach(workbench_of(tool_of(work))))


class TestAutoGen(Conformance):
    harness = AutoGenHarness()
