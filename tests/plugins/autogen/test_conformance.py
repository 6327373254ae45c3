"""The AutoGen adapter under the suite that every adapter runs, with AutoGen's own tools, workbenches and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_core.models import CreateResult

from agentrm.adapters.conformance import AsyncOnly, Conformance, Provider
from agentrm_autogen import GatedClient
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


class AutoGenHarness:
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
