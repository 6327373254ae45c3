"""What the tests of the CrewAI plugin share: LLMs and tools over the suite's provider, crews, and waiting without
guessing how long."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM, llm_call_context
from crewai.tools.base_tool import BaseTool
from pydantic import PrivateAttr

import agentrm
from agentrm.adapters.conformance.harness import manager, run_async, until
from agentrm.adapters.conformance.provider import PATIENCE_S, Provider
from agentrm.simulation.provider import StubProvider

__all__ = [
    "AsyncStub",
    "AsyncWork",
    "Provider",
    "StubLLM",
    "Work",
    "agent_of",
    "calling",
    "crew_of",
    "granted",
    "manager",
    "openai",
    "paused",
    "run_async",
    "running",
    "until",
    "wait_for",
]


class StubLLM(BaseLLM):
    """A user's own LLM, whose requests end in the suite's provider. Sync only. `says`: answers instead of the
    provider's, in turn; `heard`: what each call was given."""

    source: Any = None
    says: list[Any] = []
    window: int = 100_000
    _heard: list[Any] = PrivateAttr(default_factory=list)

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"model": "stub", **given})

    @property
    def heard(self) -> list[Any]:
        return self._heard

    def call(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        with llm_call_context():
            self._heard.append(messages if isinstance(messages, str) else [dict(message) for message in messages])
            if not self._effective_stream():
                reply = self.source.call()
                return self._answer(reply.text, reply.usage)
            text, usage = "", None
            for chunk, reported in self.source.stream():
                text, usage = text + chunk, reported or usage
                self._emit_stream_chunk_event(chunk=chunk)
            return self._answer(text, usage)

    def _answer(self, text: str, reported: Any) -> Any:
        usage = None
        if reported is not None:
            usage = dict(zip(("prompt_tokens", "completion_tokens"), reported, strict=True))
            usage["total_tokens"] = sum(reported)
            self._track_token_usage_internal(usage)
        self._emit_call_completed_event(response=text, call_type=LLMCallType.LLM_CALL, usage=usage)
        return self.says[min(len(self._heard), len(self.says)) - 1] if self.says else text

    def supports_function_calling(self) -> bool:
        return any(isinstance(said, list) for said in self.says)

    def get_context_window_size(self) -> int:
        return self.window


class AsyncStub(StubLLM):
    """The same with async code of its own."""

    async def acall(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        with llm_call_context():
            self._heard.append(messages)
            reply = await self.source.acall()
            return self._answer(reply.text, reply.usage)


def calling(*names: str, **arguments: Any) -> list[dict[str, Any]]:
    """An answer that calls tools."""
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, name in enumerate(names)
    ]


class Work(BaseTool):
    """A tool of a sync function."""

    name: str = "work"
    description: str = "works"
    fn: Any

    def _run(self) -> Any:
        return self.fn()


class AsyncWork(Work):
    """A tool of an async function."""

    async def _arun(self) -> Any:
        return await self.fn()


def openai(provider: StubProvider, **more: Any) -> Any:
    """CrewAI's own OpenAI completion."""
    return LLM(model="openai/gpt-4o", base_url=provider.base_url, api_key="any", **more)


def agent_of(llm: Any, tools: Sequence[Any] = (), role: str = "worker", **more: Any) -> Agent:
    return Agent(role=role, goal="to work", backstory="a worker", llm=llm, tools=list(tools), **more)


def crew_of(*agents: Agent, tasks: int = 1, **more: Any) -> Crew:
    """Each agent does `tasks` tasks."""
    made = [
        Task(description=f"task {i} of {agent.role}", expected_output="anything", agent=agent)
        for agent in agents
        for i in range(tasks)
    ]
    return Crew(agents=list(agents), tasks=made, **more)


def wait_for(event: threading.Event, what: str) -> None:
    assert event.wait(PATIENCE_S), f"never came: {what}"


def paused(rm: agentrm.ResourceManager) -> None:
    """Until somebody waits for time to pass, outside of the queues."""
    for _ in range(int(PATIENCE_S / 0.001)):
        if rm.gate.pauses:
            return
        threading.Event().wait(0.001)
    raise AssertionError("nobody ever paused")


def running(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].in_use


def granted(rm: agentrm.ResourceManager, pool: str = "default") -> int:
    return rm.statistics().pools[pool].granted
