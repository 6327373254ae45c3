"""An AutoGen agent on a local engine: its calls are valid, its usage exact, its cancel heeded."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("autogen_agentchat")
pytest.importorskip("transformers")

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import CreateResult, UserMessage

from agentrm.errors import ConfigError
from agentrm.models import LocalEngine
from agentrm_autogen.local import LocalClient


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.load("tiny-random", device="cpu", threads=1)


async def test_a_stream_ends_with_the_result_and_counts_its_tokens(engine: LocalEngine) -> None:
    client = LocalClient(engine, max_new_tokens=12)
    ask = [UserMessage(content="Tell me a story", source="user")]
    parts = [part async for part in client.create_stream(ask)]
    result = parts[-1]
    assert isinstance(result, CreateResult)
    assert result.content == (await client.create(ask)).content
    assert result.usage.prompt_tokens == client.count_tokens(ask)
    assert result.usage.completion_tokens == 12
    assert client.total_usage().completion_tokens == 24


async def test_an_agent_s_tool_call_fits_its_schema(engine: LocalEngine) -> None:
    asked: list[bool] = []

    def weather(sure: bool) -> str:
        """The weather."""
        asked.append(sure)
        return "sunny"

    client = LocalClient(engine, max_new_tokens=20)
    agent = AssistantAgent("planner", client, tools=[weather])
    tools = await agent._workbench[0].list_tools()
    result = await client.create([UserMessage(content="?", source="user")], tools=tools, tool_choice="required")
    call = result.content[0]
    assert isinstance(call, FunctionCall) and call.name == "weather"
    assert set(json.loads(call.arguments)) == {"sure"}
    assert (await agent.run(task="What is the weather?")).messages


async def test_a_cancelled_call_ends_and_leaves_nothing(engine: LocalEngine) -> None:
    client, token = LocalClient(engine, max_new_tokens=3000), CancellationToken()
    token.cancel()
    result = await client.create([UserMessage(content="x", source="user")], cancellation_token=token)
    assert result.usage.completion_tokens < 50
    assert engine.statistics()[0].calls == 0


def test_unknown_options_are_refused(engine: LocalEngine) -> None:
    with pytest.raises(ConfigError, match="top_k"):
        LocalClient(engine, top_k=3)
