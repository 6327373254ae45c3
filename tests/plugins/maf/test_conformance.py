"""The adapter for the Agent Framework under the suite that every adapter runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("agent_framework")

from agent_framework import Agent, FunctionTool, Message

from agentrm.adapters.conformance import AsyncOnly, Conformance, Provider
from agentrm_maf import gate_client
from tests.plugins.maf.stub_clients import StubClient

HELLO = [Message(role="user", contents=["hello"])]


class _Model(AsyncOnly):
    def __init__(self, client: Any) -> None:
        self.client = client

    async def acall(self) -> str:
        return (await self.client.get_response(HELLO)).text

    async def astream(self) -> AsyncIterator[str]:
        async for update in self.client.get_response(HELLO, stream=True):
            if update.text:
                yield update.text


class _Runs(AsyncOnly):
    def __init__(self, agent: Any) -> None:
        self.agent = agent

    async def acall(self) -> str:
        return (await self.agent.run("hello")).text

    async def astream(self) -> AsyncIterator[str]:
        async for update in self.agent.run("hello", stream=True):
            if update.text:
                yield update.text


class _Tool:
    def __init__(self, tool: Any) -> None:
        self.tool = tool

    def run(self) -> str:
        return asyncio.run(self.arun())

    async def arun(self) -> str:
        return (await self.tool.invoke(arguments={}))[0].text


class AgentFrameworkHarness:
    def model(self, rm: Any, provider: Provider) -> Any:
        return _Model(rm.attach(StubClient(provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        client = gate_client(rm, rm.attach(StubClient(provider)))
        return _Runs(rm.attach(rm.attach(Agent(client=client, name="agent"))))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        return _Tool(rm.attach(FunctionTool(name="work", description="works", func=fn)))

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        async def work() -> str:
            return await fn()

        return _Tool(rm.attach(FunctionTool(name="work", description="works", func=work)))


class TestAgentFramework(Conformance):
    harness = AgentFrameworkHarness()
