"""Runs of real agents of the Agents SDK, with OpenAI's client against a loopback provider."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("agents")

import openai
from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    handoff,
)
from agents.tool_context import ToolContext

import agentrm
from agentrm.adapters import AttachError
from agentrm.adapters.conformance.harness import manager
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall
from agentrm_openai_agents import GatedModel
from tests.plugins.openai_agents.stub_agents import ASKED

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def calls_its_tools(request: StubRequest) -> Behaviour:
    """Each tool that is offered is called once, then there is an answer."""
    return Behaviour(text="done") if request.answers_tool else Behaviour(tool_calls=tuple(map(ToolCall, request.tools)))


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with StubProvider(calls_its_tools) as running:
        yield running


def model_of(provider: StubProvider, **more: Any) -> OpenAIChatCompletionsModel:
    client = openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", **more)
    return OpenAIChatCompletionsModel("stub", client)


@function_tool
async def work() -> str:
    """Works."""
    return "worked"


def granted(rm: agentrm.ResourceManager) -> dict[str, int]:
    return {name: pool.granted for name, pool in rm.statistics().pools.items()}


async def test_an_attached_agent_takes_a_lease_for_each_model_call_and_each_tool_call(provider: StubProvider) -> None:
    rm = manager()
    agent = Agent(name="planner", model=model_of(provider), tools=[work])
    assert (await Runner.run(rm.attach(agent), "hello")).final_output == "done"
    assert granted(rm) == {"default": 2, "tools": 1}
    await Runner.run(agent, "hello")
    assert granted(rm) == {"default": 2, "tools": 1}, "the agent itself stays as it is"


async def test_the_agents_name_says_who_asks(provider: StubProvider) -> None:
    rm, seen = manager(), set()
    rm.subscribe(lambda event: seen.add(event.agent))
    await Runner.run(rm.attach(Agent(name="planner", model=model_of(provider), tools=[work])), "hello")
    assert seen == {"planner"}


async def test_what_was_said_of_a_tool_before_holds_in_its_agent(provider: StubProvider) -> None:
    rm, seen = manager(), set()
    rm.subscribe(lambda event: seen.add((event.pool, event.agent)))
    tool = rm.attach(work, agent="toolsmith")
    await Runner.run(rm.attach(Agent(name="planner", model=model_of(provider), tools=[tool])), "hello")
    assert seen == {("default", "planner"), ("tools", "toolsmith")}


@pytest.mark.parametrize("said", [0, -1])
async def test_a_limit_of_no_tokens_counts_as_none(provider: StubProvider, said: int) -> None:
    rm = manager()
    settings = {"model_settings": ModelSettings(max_tokens=said)}
    await rm.attach(model_of(provider)).get_response(**{**ASKED, **settings})
    assert granted(rm)["default"] == provider.statistics().arrived == 1


async def test_an_agent_in_a_circle_is_warned_then_stopped(provider: StubProvider) -> None:
    rm = manager()
    agent = rm.attach(Agent(name="a", model=model_of(provider), tools=[work]))
    with rm.guard(agent="a", repeat=3) as guards:
        for _ in range(3):
            await Runner.run(agent, "hello")
        with pytest.raises(Exception, match="3 times"):
            await Runner.run(agent, "hello")
    assert [event.kind for event in guards.events] == ["warning", "loop"]
    assert granted(rm)["tools"] == 3


async def test_an_agent_as_a_tool_of_another_ends_at_one_lane_of_each_kind(provider: StubProvider) -> None:
    rm = manager(1, tools=1)
    inner = rm.attach(Agent(name="inner", model=model_of(provider), tools=[work]))
    asks = Behaviour(tool_calls=(ToolCall("ask", {"input": "x"}),))
    with StubProvider([asks, Behaviour(text="done")]) as asking:
        outer = Agent(name="outer", model=model_of(asking), tools=[inner.as_tool("ask", "asks")])
        assert (await Runner.run(rm.attach(outer), "hello")).final_output == "done"
    assert granted(rm) == {"default": 4, "tools": 2}


async def test_those_an_agent_hands_off_to_are_gated_too_also_in_a_circle(provider: StubProvider) -> None:
    rm = manager()
    first, second = Agent(name="first", model=model_of(provider)), Agent(name="second", model=model_of(provider))
    first.handoffs, second.handoffs = [second], [first]
    with StubProvider([Behaviour(tool_calls=(ToolCall("transfer_to_second"),)), Behaviour(text="done")]) as hands_off:
        first.model = second.model = model_of(hands_off)
        result = await Runner.run(rm.attach(first), "hello")
    assert (result.last_agent.name, result.final_output) == ("second", "done")
    assert granted(rm)["default"] == 2


async def test_one_that_is_known_only_at_the_handoff_is_gated_then(provider: StubProvider) -> None:
    rm = manager()
    with StubProvider([Behaviour(tool_calls=(ToolCall("transfer_to_second"),)), Behaviour(text="done")]) as hands_off:
        second = Agent(name="second", model=model_of(hands_off))
        first = Agent(name="first", model=model_of(hands_off), handoffs=[handoff(second)])
        await Runner.run(rm.attach(first), "hello")
    assert granted(rm)["default"] == 2


async def test_agents_that_are_made_at_a_handoff_are_gated_each_as_itself() -> None:
    numbers, makes = itertools.count(), handoff(Agent(name="nobody"))

    async def make(context: Any, arguments: str) -> Agent[Any]:
        return Agent(name=f"made {next(numbers)}")

    makes.on_invoke_handoff = make
    gated = manager().attach(Agent(name="first", handoffs=[makes])).handoffs[0]
    assert [(await gated.on_invoke_handoff(None, "")).name for _ in range(5)] == [f"made {n}" for n in range(5)]


async def test_a_run_configurations_provider_gates_agents_that_name_their_model(provider: StubProvider) -> None:
    from agents import OpenAIProvider

    rm = manager()
    client = openai.AsyncOpenAI(base_url=provider.base_url, api_key="any")
    config = RunConfig(model_provider=OpenAIProvider(openai_client=client, use_responses=False))
    result = await Runner.run(Agent(name="a", model="stub"), "hello", run_config=rm.attach(config))
    assert result.final_output and granted(rm)["default"] == 1


def test_a_model_that_is_a_name_needs_no_key_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert isinstance(manager().attach(Agent(name="a", model="gpt-5-mini")).model, GatedModel)
    assert isinstance(manager().attach(Agent(name="a")).model, GatedModel)


async def test_the_clients_own_retries_are_off_and_the_gates_are_on(provider: StubProvider) -> None:
    rm = manager(pools={"default": {"retry": {"attempts": 2}}})
    with StubProvider(Behaviour("rate", retry_after_s=0.01)) as refusing:
        with pytest.raises(openai.RateLimitError):
            await Runner.run(rm.attach(Agent(name="a", model=model_of(refusing, max_retries=5))), "hello")
        assert refusing.statistics().arrived == 2


async def test_a_tools_timeout_counts_from_its_grant() -> None:
    rm = manager(tools=1)

    async def on_invoke_tool(context: Any, arguments: str) -> str:
        return "worked"

    tool = FunctionTool("work", "works", {}, on_invoke_tool, strict_json_schema=False, timeout_seconds=0.05)
    context: Any = ToolContext(context=None, tool_name="work", tool_call_id="1", tool_arguments="{}")
    holder = rm.lease(kind="tool", tool="other").acquire()
    waiting = asyncio.create_task(rm.attach(tool).on_invoke_tool(context, "{}"))
    while rm.statistics().waiting == 0:
        await asyncio.sleep(0)
    assert rm.attach(tool).timeout_seconds is None, "nothing that counts while it is queued"
    holder.release()
    assert await waiting == "worked"


async def test_a_streamed_run_holds_its_lane_to_the_last_event(provider: StubProvider) -> None:
    rm = manager()
    settings = ModelSettings(include_usage=True)
    agent = rm.attach(Agent(name="a", model=model_of(provider), model_settings=settings))
    result = Runner.run_streamed(agent, "hello")
    async for _ in result.stream_events():
        pass
    assert result.final_output
    assert (rm.statistics().running, granted(rm)["default"]) == (0, 1)


def test_what_makes_no_calls_is_refused_with_the_line_to_write() -> None:
    from agents import ModelSettings as Settings

    with pytest.raises(AttachError, match="agent = rm.attach"):
        manager().attach(Settings())


async def test_what_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone(
    provider: StubProvider,
) -> None:
    old, new = manager(), manager()
    agent = old.attach(Agent(name="planner", model=model_of(provider), tools=[work]))
    old.close()
    assert (await Runner.run(new.attach(agent), "hello")).final_output == "done"
    assert granted(new) == {"default": 2, "tools": 1}
