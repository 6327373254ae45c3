"""The adapter for the Agents SDK under the suite that every adapter runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, FunctionTool, Runner
from agents.tool_context import ToolContext

from agentrm.adapters.conformance import AsyncOnly, Conformance, Provider
from agentrm.adapters.conformance.harness import run_async
from tests.plugins.openai_agents.stub_agents import ASKED, StubModel


class _Model(AsyncOnly):
    def __init__(self, model: Any) -> None:
        self.model = model

    async def acall(self) -> str:
        return (await self.model.get_response(**ASKED)).output[0].content[0].text

    async def astream(self) -> AsyncIterator[str]:
        async for event in self.model.stream_response(**ASKED):
            if event.type == "response.output_text.delta":
                yield event.delta


class _Runs(_Model):
    """An agent attached twice, its model once more."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    async def acall(self) -> str:
        return (await Runner.run(self.agent, "hello")).final_output

    async def astream(self) -> AsyncIterator[str]:
        async for event in Runner.run_streamed(self.agent, "hello").stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta


class _Tool:
    def __init__(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> None:
        async def on_invoke_tool(context: Any, arguments: str) -> str:
            return await fn()

        self.tool = rm.attach(FunctionTool("work", "works", {}, on_invoke_tool, strict_json_schema=False))

    def run(self) -> str:
        return run_async(self.arun)

    async def arun(self) -> str:
        context: Any = ToolContext(context=None, tool_name="work", tool_call_id="1", tool_arguments="{}")
        return await self.tool.on_invoke_tool(context, "{}")


class AgentsHarness:
    def model(self, rm: Any, provider: Provider) -> Any:
        return _Model(rm.attach(StubModel(provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        agent = Agent(name="agent", model=rm.attach(StubModel(provider)))
        return _Runs(rm.attach(rm.attach(agent)))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        raise NotImplementedError("the SDK runs sync tools on a thread of its own, within an async one")

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        return _Tool(rm, fn)


class TestOpenAIAgents(Conformance):
    harness = AgentsHarness()
