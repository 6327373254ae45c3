"""The agents of the demo, as a user writes them. agentrm comes in through `Access` alone.

    person -> assistant (provider) -> researcher (provider), a sub-agent behind a tool
                                   -> reader (local model), a graph behind a tool
    indexers (provider) and sorters (local model) work in the background

What works on the provider is of the framework that is asked for (`hosted_NAME.py`), the rest of LangChain.
That a tool is used never depends on a model's wits: the provider follows a plan, the reader's graph has edges, the
sorters' tool call is written by constrained decoding.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from typing import Any, Literal, Protocol, TypedDict

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field

from agentrm import ResourceManager
from agentrm.demo.journal import Journal
from agentrm.demo.scenario import ASSISTANT, HOSTED, READER, RESEARCHER, Scenario
from agentrm_langchain import ChatLocal

__all__ = ["Access", "Agents", "Hosted", "build", "manager"]


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
    """The difference between the two runs: without a manager nothing is attached."""

    rm: ResourceManager | None

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


class Hosted(Protocol):
    """`agent` of `hosted_NAME.py`: an agent of that framework on the hosted model, as a careful user sets it up
    (time-outs, retries); with a manager it is attached, as who the keyword arguments say."""

    def __call__(
        self,
        scenario: Scenario,
        base_url: str,
        rm: ResourceManager | None,
        name: str,
        tools: list[Callable[..., Any]],
        **who: Any,
    ) -> Run: ...


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
    """On a running loop. The frameworks take turns with the agents on the hosted model, the assistant first."""
    frameworks = cycle([import_module(f"agentrm.demo.hosted_{name}").agent for name in scenario.frameworks])

    def hosted(name: str, tools: list[Callable[..., Any]], **who: Any) -> Run:
        make: Hosted = next(frameworks)
        return make(scenario, base_url, access.rm, name, tools, **who)

    def local(agent: str, **identity: Any) -> JournalledLocal:
        model = JournalledLocal(
            model=scenario.local_model, threads=1, max_tokens=scenario.answer_tokens, agent=agent, journal=journal
        )
        return access.model(model, agent=agent, idle_s=60.0, **identity)

    def sorter_of(name: str) -> Run:
        agent: Any = create_agent(
            local(name, priority="background"), name=name, response_format=ToolStrategy(Filing),
            system_prompt="File the letter.",
        )  # fmt: skip

        async def run(text: str) -> str:
            result = await agent.ainvoke({"messages": [HumanMessage(text)]})
            return str(result["structured_response"].shelf)

        return run

    reader = _reader(local(READER, priority="interactive"))

    async def ask_researcher(text: str) -> str:
        """Ask the researcher what is known."""
        return await researcher(text)

    async def ask_reader(text: str) -> str:
        """Let the reader look it up in the files."""
        return await reader(text)

    async def store_note(text: str) -> str:
        """Store a note."""
        return f"stored {len(text)} characters"

    assistant = hosted(ASSISTANT, [ask_researcher, ask_reader], priority="interactive")
    # The person waits for this one too: by default it would be `subagent` within the assistant's call.
    researcher = hosted(RESEARCHER, [], priority="interactive")
    indexers = {name: hosted(name, [store_note], priority="background") for name in scenario.names_of_indexers}
    return Agents(assistant, indexers, {name: sorter_of(name) for name in scenario.names_of_sorters})


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
