"""LangChain, AutoGen, CrewAI and a plain client in one process, under one manager, against one loopback provider."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("autogen_ext")
pytest.importorskip("crewai")

import openai
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool as crewai_tool
from langchain.agents import create_agent
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI

import agentrm
from agentrm.demo.hosted_autogen import INFO
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall
from agentrm_langchain import AgentRMMiddleware
from tests.waiting import come

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

LANES = 2
Ask = Callable[[], Awaitable[Any]]


def plan(request: StubRequest) -> Behaviour:
    """A tool that is offered is called once, then there is an answer."""
    if request.tools and not request.answers_tool:
        return Behaviour(tool_calls=(ToolCall(request.tools[0], {"text": "x"}),), service_s=0.001)
    return Behaviour(text="done", service_s=0.001)


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with StubProvider(plan) as running:
        yield running


def manager(requests: int = 100_000, per: float = 60, **more: Any) -> agentrm.ResourceManager:
    return agentrm.ResourceManager(
        accounts={"account": {"limits": [{"requests": requests, "per": per}]}},
        pools={"default": {"lanes": LANES, "account": "account"}, "tools": {"lanes": 4}},
        seed=7,
        **more,
    )


def chat_openai(provider: StubProvider) -> ChatOpenAI:
    return ChatOpenAI(model="stub", base_url=provider.base_url, api_key="any")


def autogen_client(provider: StubProvider) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="stub", base_url=provider.base_url, api_key="any", model_info=INFO)


def crewai_llm(provider: StubProvider) -> LLM:
    return LLM(model="openai/stub", base_url=provider.base_url, api_key="any")


def asks_of_each_kind(rm: agentrm.ResourceManager, provider: StubProvider) -> dict[str, Ask]:
    """One call of a real client of each framework, and of none."""
    from autogen_core.models import UserMessage

    chat, client = rm.attach(chat_openai(provider)), rm.attach(autogen_client(provider))
    llm, plain = rm.attach(crewai_llm(provider)), openai.AsyncOpenAI(base_url=provider.base_url, api_key="any")
    raw = rm.attach(plain).chat.completions
    return {
        "langchain": lambda: chat.ainvoke("hello"),
        "autogen": lambda: client.create([UserMessage(content="hello", source="user")]),
        "crewai": lambda: llm.acall("hello"),
        "openai": lambda: raw.create(model="stub", messages=[{"role": "user", "content": "hello"}]),
    }


async def test_all_keep_to_the_lanes_together(provider: StubProvider) -> None:
    rm = manager()
    asks = asks_of_each_kind(rm, provider)
    await asyncio.gather(*(ask() for ask in asks.values() for _ in range(12)))
    assert provider.peak_concurrency <= LANES
    assert provider.statistics().arrived == rm.statistics().pools["default"].granted == 48
    assert rm.statistics().running == 0


async def test_all_keep_to_the_accounts_limit_together(provider: StubProvider) -> None:
    clock = agentrm.VirtualClock()
    rm = manager(requests=6, per=60, clock=clock)
    asks = asks_of_each_kind(rm, provider)
    work = asyncio.gather(*(ask() for ask in asks.values() for _ in range(6)))
    for minute in range(1, 5):
        settled = minute * 6
        await come(lambda: rm.statistics().pools["default"].settled >= settled)
        pool = rm.statistics().pools["default"]
        assert (pool.granted, pool.waiting) == (minute * 6, 24 - minute * 6)
        assert provider.statistics().arrived == minute * 6
        clock.advance(60.001)
    await work


def runs_of_each_framework(rm: agentrm.ResourceManager, provider: StubProvider, **who: Any) -> dict[str, Ask]:
    """An agent, a team and a crew whose tool asks another agent of the same framework."""

    def chain(name: str, tools: Any = ()) -> Any:
        middleware: Any = [AgentRMMiddleware(rm, **who)]
        return create_agent(chat_openai(provider), list(tools), name=name, middleware=middleware)

    inner_chain = chain("inner")

    @langchain_tool
    async def ask_inner(text: str) -> str:
        """Asks another agent."""
        return str((await inner_chain.ainvoke({"messages": [("user", text)]}))["messages"][-1].text)

    outer_chain = chain("outer", [ask_inner])

    async def langchain() -> Any:
        return (await outer_chain.ainvoke({"messages": [("user", "hello")]}))["messages"][-1].text

    async def autogen() -> Any:
        inner = rm.attach(AssistantAgent("inner", autogen_client(provider)), **who)

        async def ask_inner(text: str) -> str:
            return str((await inner.run(task=text)).messages[-1].content)

        outer = AssistantAgent("outer", autogen_client(provider), tools=[ask_inner], description="asks")
        team = rm.attach(RoundRobinGroupChat([outer], termination_condition=MaxMessageTermination(2)), **who)
        return (await team.run(task="hello")).messages[-1].content

    async def crewai() -> Any:
        inner = rm.attach(Agent(role="inner", goal="g", backstory="b", llm=crewai_llm(provider)), **who)

        @crewai_tool("ask_inner")
        def ask_inner(text: str) -> str:
            """Asks another agent."""
            return str(inner.kickoff(text).raw)

        outer = Agent(role="outer", goal="g", backstory="b", llm=crewai_llm(provider), tools=[ask_inner])
        task = Task(description="hello", expected_output="an answer", agent=outer)
        crew = rm.attach(Crew(agents=[outer], tasks=[task]), **who)
        return (await crew.akickoff()).raw

    return {"langchain": langchain, "autogen": autogen, "crewai": crewai}


@pytest.mark.slow
async def test_two_hundred_runs_with_agents_in_agents_at_one_lane_of_each_kind_all_end(
    provider: StubProvider, seed: int
) -> None:
    rm = agentrm.ResourceManager(pools={"default": {"lanes": 1}, "tools": {"lanes": 1}}, seed=seed)
    asks, dice = runs_of_each_framework(rm, provider), random.Random(seed)
    names = [*asks] * 60 + ["langchain", "autogen"] * 10
    dice.shuffle(names)
    gate = asyncio.Semaphore(12)  # that many beside each other

    async def one(name: str) -> Any:
        async with gate:
            return await asks[name]()

    answers = await asyncio.gather(*map(one, names))
    assert len(answers) == 200 and all(answers)
    assert provider.peak_concurrency == 1
    statistics = rm.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert all(pool.zombies == 0 for pool in statistics.pools.values())
    rm.close()


async def test_nothing_of_the_background_begins_while_a_person_waits(provider: StubProvider) -> None:
    """Whatever framework it is of. So the person is behind the calls that run, and at most until the first of them ends."""
    rm, events = manager(), list[Any]()
    subscription = rm.subscribe(lambda event: events.append(event) if event.pool == "default" else None)
    person = asks_of_each_kind(rm, provider)["langchain"]
    background = runs_of_each_framework(rm, provider, priority="background")
    work = [asyncio.ensure_future(ask()) for _ in range(4) for ask in background.values()]
    for _ in range(20):
        await come(lambda: rm.statistics().pools["default"].waiting >= 2 or all(task.done() for task in work))
        with agentrm.identity(priority="interactive", agent="person"):
            await person()
    await asyncio.gather(*work)
    subscription.close()
    waited = 0
    for submit in (e for e in events if e.kind == "submit" and e.agent == "person"):
        (grant,) = (e for e in events if e.kind == "grant" and e.handle == submit.handle)
        between = [e for e in events if e.kind == "grant" and submit.seq < e.seq < grant.seq]
        assert not between, "others began while the person waited"
        waited += sum(e.kind == "settle" and submit.seq < e.seq < grant.seq for e in events) == 1
    assert waited > 0, "the lanes were busy when the person came"
    assert rm.statistics().running == 0
