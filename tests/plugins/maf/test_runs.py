"""Runs of real agents of the Agent Framework, with OpenAI's client against a loopback provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("agent_framework.openai")

import openai
from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatCompletionClient

import agentrm
from agentrm.adapters import AttachError
from agentrm.adapters.conformance.harness import manager
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def calls_its_tools(request: StubRequest) -> Behaviour:
    return Behaviour(text="done") if request.answers_tool else Behaviour(tool_calls=tuple(map(ToolCall, request.tools)))


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with StubProvider(calls_its_tools) as running:
        yield running


def client_of(provider: StubProvider, **more: Any) -> OpenAIChatCompletionClient:
    client = openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", **more)
    return OpenAIChatCompletionClient(model="stub", async_client=client)


@tool(approval_mode="never_require")
def work() -> str:
    """Works."""
    return "worked"


def granted(rm: agentrm.ResourceManager) -> dict[str, int]:
    return {name: pool.granted for name, pool in rm.statistics().pools.items()}


async def test_an_attached_agent_takes_a_lease_for_each_model_call_and_each_tool_call(provider: StubProvider) -> None:
    rm, seen = manager(), set()
    rm.subscribe(lambda event: seen.add(event.agent))
    agent = Agent(client=client_of(provider), name="planner", tools=[work])
    assert (await rm.attach(agent).run("hello")).text == "done"
    assert granted(rm) == {"default": 2, "tools": 1}
    assert seen == {"planner"}
    await agent.run("hello")
    assert granted(rm) == {"default": 2, "tools": 1}, "the agent itself stays as it is"


async def test_an_agent_names_the_calls_of_a_client_that_was_attached_before(provider: StubProvider) -> None:
    rm, seen = manager(), set()
    rm.subscribe(lambda event: seen.add(event.agent))
    await rm.attach(Agent(client=rm.attach(client_of(provider), pool="default"), name="planner")).run("hello")
    assert seen == {"planner"}


async def test_an_agent_in_a_circle_is_warned_and_its_next_step_refused(provider: StubProvider) -> None:
    rm = manager()
    agent = rm.attach(Agent(client=client_of(provider), name="a", tools=[work]))
    with rm.guard(agent="a", repeat=3) as guards:
        for _ in range(4):
            await agent.run("hello")
    assert [event.kind for event in guards.events] == ["warning", "loop"]
    assert granted(rm)["tools"] == 3


async def test_an_agent_as_a_tool_of_another_ends_at_one_lane_of_each_kind(provider: StubProvider) -> None:
    rm = manager(1, tools=1)
    inner = rm.attach(Agent(client=client_of(provider), name="inner", tools=[work]))
    ask = inner.as_tool(name="ask", description="asks", arg_name="task")
    with StubProvider(
        lambda r: Behaviour(text="done") if r.answers_tool else Behaviour(tool_calls=(ToolCall("ask", {"task": "x"}),))
    ) as outer_provider:
        outer = rm.attach(Agent(client=client_of(outer_provider), name="outer", tools=[ask]))
        assert (await outer.run("hello")).text == "done"
    assert granted(rm) == {"default": 4, "tools": 2}


async def test_while_tools_run_no_lane_of_the_model_is_held(provider: StubProvider) -> None:
    rm, seen = manager(), []

    @tool(approval_mode="never_require")
    async def look() -> str:
        """Looks."""
        seen.append(rm.statistics().pools["default"].in_use)
        return "seen"

    await rm.attach(Agent(client=client_of(provider), name="a", tools=[look])).run("hello")
    assert seen == [0]


async def test_a_stream_holds_its_lane_until_its_last_update(provider: StubProvider) -> None:
    rm, held = manager(), []
    stream = rm.attach(client_of(provider)).get_response("hello", stream=True)
    async for update in stream:
        held.append((bool(update.text), rm.statistics().running))
    assert all(running == 1 for has_text, running in held if has_text) and held
    assert rm.statistics().running == 0
    assert (await stream.get_final_response()).text


async def test_the_clients_own_retries_are_off_and_the_gates_are_on() -> None:
    rm = manager(pools={"default": {"retry": {"attempts": 2}}})
    with StubProvider(Behaviour("rate", retry_after_s=0.01)) as refusing:
        agent = rm.attach(Agent(client=client_of(refusing, max_retries=5), name="a"))
        with pytest.raises(Exception, match="429"):
            await agent.run("hello")
        assert refusing.statistics().arrived == 2


async def test_agents_beside_each_other_keep_to_the_lanes(provider: StubProvider) -> None:
    rm = manager(2)
    agents = [rm.attach(Agent(client=client_of(provider), name=f"a{i}", tools=[work])) for i in range(6)]
    assert [r.text for r in await asyncio.gather(*(agent.run("hello") for agent in agents))] == ["done"] * 6
    assert provider.peak_concurrency <= 2
    assert rm.statistics().running == 0


def test_what_makes_no_calls_is_refused_with_the_line_to_write() -> None:
    from agent_framework import Message

    with pytest.raises(AttachError, match="agent = rm.attach"):
        manager().attach(Message(role="user", contents=["x"]))


async def test_what_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone(
    provider: StubProvider,
) -> None:
    old, new = manager(), manager()
    agent = old.attach(Agent(client=client_of(provider), name="planner", tools=[work]))
    old.close()
    assert (await new.attach(agent).run("hello")).text == "done"
    assert granted(new) == {"default": 2, "tools": 1}
