"""What the tests of the LangChain plugin share: agents over stub models, and waiting without guessing how long."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from pydantic import ConfigDict, PrivateAttr

import agentrm
from agentrm.adapters.conformance.harness import manager, run_async, until
from agentrm.adapters.conformance.provider import PATIENCE_S, Provider

__all__ = [
    "HELLO",
    "Scripted",
    "agent_of",
    "calling",
    "granted",
    "manager",
    "run_async",
    "running",
    "tool_of",
    "until",
    "wait_for",
]

HELLO = {"messages": [HumanMessage("hello")]}


class Scripted(BaseChatModel):
    """Says the given messages in turn; knows tools, so that agents can have it. `heard`: what each call was given."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    says: list[AIMessage]
    model: str = "scripted-1"
    provider: Provider | None = None
    _at: int = PrivateAttr(default=0)
    _heard: list[Any] = PrivateAttr(default_factory=list)

    @property
    def heard(self) -> list[Any]:
        return self._heard

    def _next(self, messages: Any) -> ChatResult:
        self._heard.append(list(messages))
        message = self.says[min(len(self._heard), len(self.says)) - 1]
        return ChatResult(generations=[ChatGeneration(message=message.model_copy())])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.provider is not None:
            self.provider.call()
        return self._next(messages)

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.provider is not None:
            await self.provider.acall()
        return self._next(messages)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[getattr(tool, "name", tool) for tool in tools], **kwargs)

    @property
    def _llm_type(self) -> str:
        return "scripted"


def calling(*names: str) -> AIMessage:
    calls = [{"name": name, "args": {}, "id": f"call-{i}", "type": "tool_call"} for i, name in enumerate(names)]
    return AIMessage("", tool_calls=calls)


def tool_of(fn: Callable[..., Any], name: str = "work") -> StructuredTool:
    """A tool of a sync or an async function."""
    kinds = {"coroutine": fn} if inspect.iscoroutinefunction(fn) else {"func": fn}
    return StructuredTool.from_function(name=name, description="works", **kinds)


def agent_of(model: Any, tools: Sequence[Any] = (), *middleware: Any, **more: Any) -> Any:
    return create_agent(model, list(tools), middleware=middleware, **more)


def wait_for(event: threading.Event, what: str) -> None:
    assert event.wait(PATIENCE_S), f"never came: {what}"


def running(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].in_use


def granted(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].granted
