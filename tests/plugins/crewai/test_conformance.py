"""The CrewAI adapter under the suite that every adapter runs, with LLMs, tools and crews of CrewAI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

from agentrm.adapters.conformance import Conformance, Provider
from agentrm.context.convert_openai import from_openai, to_openai
from agentrm.context.messages import Message
from agentrm_crewai import gate_llm, gate_tool
from agentrm_crewai.compaction import compact
from tests.plugins.crewai.scenes import AsyncStub, AsyncWork, Work, agent_of, crew_of


class _LLM:
    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def call(self) -> str:
        return self.llm.call("hello")

    async def acall(self) -> str:
        return await self.llm.acall("hello")

    def stream(self) -> Iterator[str]:
        with self.llm.stream_events("hello") as session:
            for frame in session:
                if frame.content:
                    yield frame.content

    def astream(self) -> AsyncIterator[str]:
        raise NotImplementedError("CrewAI's LLMs have no async streams")


class _Crew:
    def __init__(self, crew: Any) -> None:
        self.crew = crew

    def call(self) -> str:
        return self.crew.kickoff().raw

    async def acall(self) -> str:
        return (await self.crew.akickoff()).raw


class _Tool:
    def __init__(self, tool: Any) -> None:
        self.tool = tool

    def run(self) -> str:
        return self.tool.run()

    async def arun(self) -> str:
        return await self.tool.arun()


class CrewAIHarness:
    def conversation(self, rm: Any, provider: Provider, store: Any) -> Any:
        raise NotImplementedError("CrewAI has no conversation: each kickoff begins a new one; of crews see test_kept")

    restored = conversation

    def compacted(self, messages: list[Message], max_tokens: int) -> list[Message]:
        history = to_openai(messages)
        compact(SimpleNamespace(model="stub", get_context_window_size=lambda: max_tokens), history, 1.0)
        return from_openai(history)

    def model(self, rm: Any, provider: Provider) -> Any:
        return _LLM(rm.attach(AsyncStub(source=provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        llm = gate_llm(rm, rm.attach(AsyncStub(source=provider)))
        return _Crew(rm.attach(rm.attach(crew_of(rm.attach(agent_of(llm))))))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        return _Tool(rm.attach(Work(fn=fn)))

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        return _Tool(gate_tool(rm, AsyncWork(fn=fn)))


class TestCrewAI(Conformance):
    harness = CrewAIHarness()
