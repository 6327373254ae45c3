"""What the tests of the AutoGen plugin share: clients over the suite's provider, agents that call tools, and the real
OpenAI client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionClient, CreateResult, ModelFamily, ModelInfo, RequestUsage, UserMessage
from autogen_core.tools import FunctionTool, StaticStreamWorkbench

import agentrm
from agentrm.adapters.conformance.harness import manager, run_async
from agentrm.adapters.conformance.provider import Provider
from agentrm.simulation.provider import StubProvider

__all__ = [
    "ASK",
    "INFO",
    "Client",
    "Scripted",
    "agent_of",
    "calling",
    "granted",
    "manager",
    "openai_client",
    "run_async",
    "running",
    "team_of",
    "tool_of",
    "workbench_of",
]

ASK = [UserMessage(content="hello", source="user")]
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


class _Silent(ChatCompletionClient):
    """What a client must have and no test here asks for."""

    component_type = "model"
    total = RequestUsage(0, 0)

    async def close(self) -> None: ...

    def actual_usage(self) -> RequestUsage:
        return self.total

    def total_usage(self) -> RequestUsage:
        return self.total

    def count_tokens(self, messages: Any, *, tools: Any = ()) -> int:
        return len(messages)

    def remaining_tokens(self, messages: Any, *, tools: Any = ()) -> int:
        return 1000

    @property
    def capabilities(self) -> Any:
        return INFO

    @property
    def model_info(self) -> ModelInfo:
        return INFO


def _result(content: Any, usage: tuple[int, int] | None) -> CreateResult:
    reason = "stop" if isinstance(content, str) else "function_calls"
    return CreateResult(finish_reason=reason, content=content, usage=RequestUsage(*(usage or (0, 0))), cached=False)


class Client(_Silent):
    """A client whose requests end in the conformance suite's provider."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._create_args = {"model": "stub"}

    async def create(self, messages: Any, *, cancellation_token: Any = None, **_: Any) -> CreateResult:
        asking = asyncio.ensure_future(self.provider.acall())
        if cancellation_token is not None:  # as every client of AutoGen's own does
            cancellation_token.link_future(asking)
        reply = await asking
        return _result(reply.text, reply.usage)

    async def create_stream(self, messages: Any, **_: Any) -> AsyncGenerator[str | CreateResult, None]:
        text, usage = "", None
        async for chunk, said in self.provider.astream():
            text, usage = text + chunk, said
            yield chunk
        yield _result(text, usage)


class Scripted(_Silent):
    """Says these texts, or makes these calls, in turn, the last one for ever. `heard`: what each call was given."""

    def __init__(self, *says: str | list[FunctionCall]) -> None:
        self.says, self.heard = says, list[Any]()
        self._create_args = {"model": "scripted"}

    async def create(self, messages: Any, **_: Any) -> CreateResult:
        self.heard.append(list(messages))
        return _result(self.says[min(len(self.heard), len(self.says)) - 1], (5, 5))

    async def create_stream(self, messages: Any, **_: Any) -> AsyncGenerator[str | CreateResult, None]:
        yield await self.create(messages)


def calling(*names: str, arguments: str = "{}") -> list[FunctionCall]:
    return [FunctionCall(id=f"call-{i}", name=name, arguments=arguments) for i, name in enumerate(names)]


def tool_of(fn: Callable[..., Any], name: str = "work") -> FunctionTool:
    return FunctionTool(fn, description="works", name=name)


def workbench_of(*tools: Any) -> StaticStreamWorkbench:
    return StaticStreamWorkbench(list(tools))


def agent_of(client: Any, tools: Sequence[Any] = (), name: str = "worker", **more: Any) -> AssistantAgent:
    return AssistantAgent(name, client, tools=list(tools) or None, **more)


def team_of(*agents: Any, turns: int = 3, **more: Any) -> RoundRobinGroupChat:
    return RoundRobinGroupChat(list(agents), termination_condition=MaxMessageTermination(turns), **more)


def openai_client(provider: StubProvider, **more: Any) -> Any:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    return OpenAIChatCompletionClient(model="stub", base_url=provider.base_url, api_key="any", model_info=INFO, **more)


def running(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].in_use


def granted(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].granted
