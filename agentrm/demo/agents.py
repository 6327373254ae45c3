"""The agents of the demo: LangChain and LangGraph as a user writes them. agentrm comes in through `Access` alone.

    person -> assistant (provider) -> researcher (provider), a sub-agent behind a tool
                                   -> reader (local model), a graph behind a tool
    indexers (provider) and sorters (local model) work in the background

That a tool is used never depends on a model's wits: the provider follows a plan, the reader's graph has edges, the
sorters' tool call is written by constrained decoding.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field, SecretStr

from agentrm import ResourceManager
from agentrm.demo.journal import Journal
from agentrm.demo.scenario import ASSISTANT, HOSTED, READER, RESEARCHER, Scenario
from agentrm.simulation.provider import AGENT_HEADER
from agentrm_langchain import AgentRMMiddleware, ChatLocal

__all__ = ["Access", "Agents", "build", "manager"]


def manager(scenario: Scenario) -> ResourceManager:
    """What the user says of the resources: what the provider allows, what the machine can do, how long is too long."""
    return ResourceManager(
        pools={
            "hosted": {
                "models": [HOSTED],
                "lanes": scenario.provider_lanes,
                "limits": [{"requests": scenario.requests, "per": scenario.per_s + scenario.margin_s}],
            },
            "local": {"models": [scenario.local_model], "lanes": scenario.local_lanes},
        },
        reaper={"idle_s": scenario.idle_s, "sweep_s": scenario.sweep_s},
        seed=scenario.seed,
    )


@dataclass(frozen=True, slots=True)
class Access:
    """The difference between the two runs: without a manager these methods do nothing."""

    rm: ResourceManager | None

    def middleware(self, **identity: Any) -> list[AgentMiddleware[Any, Any]]:
        return [] if self.rm is None else [AgentRMMiddleware(self.rm, **identity)]

    def model(self, model: JournalledLocal, **identity: Any) -> JournalledLocal:
        return model if self.rm is None else self.rm.attach(model, **identity)


class JournalledLocal(ChatLocal):
    """ChatLocal that writes down when it is at work, in both runs."""

    agent: str
    journal: Any = Field(exclude=True)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        with self.journal.local_call(self.agent):
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk


Run = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Agents:
    """Each takes what it is asked and returns its whole answer; raises what the agent raises."""

    assistant: Run
    indexers: dict[str, Run]
    sorters: dict[str, Run]


class Filing(BaseModel):
    """Files a letter."""

    shelf: Literal["billing", "delivery", "returns", "praise"]


class Reading(TypedDict, total=False):
    question: str
    passage: str
    answer: str


PASSAGES = {
    "order": "Order 1042 was charged twice by mistake and refunded on 5 May.",
    "parcel": "Parcels from Lyon are two days late.",
    "": "A customer in Lyon sent back a broken vase.",
}


def build(scenario: Scenario, base_url: str, access: Access, journal: Journal) -> Agents:
    def hosted(agent: str) -> ChatOpenAI:
        return ChatOpenAI(
            model=HOSTED, base_url=base_url, api_key=SecretStr("not-needed"), max_retries=0,
            timeout=scenario.client_timeout_s, stream_chunk_timeout=scenario.client_timeout_s,
            streaming=True, stream_usage=True, default_headers={AGENT_HEADER: agent},
        )  # fmt: skip

    def local(agent: str, **identity: Any) -> JournalledLocal:
        model = JournalledLocal(
            model=scenario.local_model, threads=1, max_tokens=scenario.answer_tokens, agent=agent, journal=journal
        )
        return access.model(model, agent=agent, idle_s=60.0, **identity)

    def retries() -> ModelRetryMiddleware[Any, Any]:
        return ModelRetryMiddleware(max_retries=scenario.retries, on_failure="error")

    def agent_of(name: str, tools: list[Any], **identity: Any) -> Run:
        agent: Any = create_agent(
            hosted(name), tools, name=name,
            middleware=[retries(), *access.middleware(agent=name, **identity)],
        )  # fmt: skip

        async def run(text: str) -> str:
            result = await agent.ainvoke({"messages": [HumanMessage(text)]})
            return str(result["messages"][-1].text)

        return run

    def sorter_of(name: str) -> Run:
        agent: Any = create_agent(
            local(name, priority="background"), name=name, response_format=ToolStrategy(Filing),
            system_prompt="File the letter.",
        )  # fmt: skip

        async def run(text: str) -> str:
            result = await agent.ainvoke({"messages": [HumanMessage(text)]})
            return str(result["structured_response"].shelf)

        return run

    # The person waits for these too: by default they would be `subagent` within the assistant's call.
    researcher = agent_of(RESEARCHER, [], priority="interactive")
    reader = _reader(local(READER, priority="interactive"))

    @tool
    async def ask_researcher(text: str) -> str:
        """Ask the researcher what is known."""
        return await researcher(text)

    @tool
    async def ask_reader(text: str) -> str:
        """Let the reader look it up in the files."""
        return await reader(text)

    @tool
    async def store_note(text: str) -> str:
        """Store a note."""
        return f"stored {len(text)} characters"

    return Agents(
        agent_of(ASSISTANT, [ask_researcher, ask_reader], priority="interactive"),
        {name: agent_of(name, [store_note], priority="background") for name in scenario.names_of_indexers},
        {name: sorter_of(name) for name in scenario.names_of_sorters},
    )


def _reader(model: JournalledLocal) -> Run:
    """Looks up a passage, then lets the local model answer from it: the edges of the graph say so."""

    async def look_up(state: Reading) -> Reading:
        question = state["question"]
        return {"passage": next(text for word, text in PASSAGES.items() if word in question)}

    async def answer(state: Reading) -> Reading:
        messages = [SystemMessage(state["passage"]), HumanMessage(state["question"])]
        reply: AIMessage = await model.ainvoke(messages)
        return {"answer": str(reply.text)}

    graph: Any = StateGraph(Reading)
    graph.add_node("look_up", look_up)
    graph.add_node("answer", answer)
    graph.add_edge(START, "look_up")
    graph.add_edge("look_up", "answer")
    graph.add_edge("answer", END)
    compiled = graph.compile()

    async def run(text: str) -> str:
        return str((await compiled.ainvoke({"question": text}))["answer"])

    return run
