"""CrewAI on a local engine: valid tool calls, exact usage."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

from crewai import Agent
from crewai.tools import tool

from agentrm.errors import ConfigError
from agentrm.models import LocalEngine
from agentrm_crewai.local import LocalLLM


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.load("tiny-random", device="cpu", threads=1)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]},
    },
}  # fmt: skip


def test_text_comes_back_and_its_tokens_are_counted(engine: LocalEngine) -> None:
    llm = LocalLLM(engine, max_new_tokens=12)
    assert isinstance(llm.call("Tell me a story"), str)
    used = llm.get_token_usage_summary()
    assert used.completion_tokens == 12 and used.prompt_tokens > 0 and used.successful_requests == 1


async def test_a_tool_call_fits_its_schema_and_its_result_can_be_told(engine: LocalEngine) -> None:
    llm = LocalLLM(engine, max_new_tokens=12)
    answers = [await llm.acall([{"role": "user", "content": f"{n}?"}], tools=[TOOL]) for n in range(8)]
    calls = [answer[0] for answer in answers if isinstance(answer, list)]
    assert calls, "of eight answers one at least is a call"
    for call in calls:
        assert call["function"]["name"] == "weather" and set(json.loads(call["function"]["arguments"])) == {"sure"}
    told = [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": None, "tool_calls": [calls[0]]},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"},
    ]
    assert llm.call(told) is not None


def test_an_agent_runs_on_it(engine: LocalEngine) -> None:
    @tool("weather")
    def weather(sure: bool) -> str:
        """The weather."""
        return "sunny"

    agent = Agent(
        role="r", goal="g", backstory="b", llm=LocalLLM(engine, max_new_tokens=8), tools=[weather], max_iter=2
    )
    assert agent.kickoff("The weather?").raw is not None


def test_what_it_can_not_do_is_refused(engine: LocalEngine) -> None:
    from pydantic import BaseModel

    llm = LocalLLM(engine)
    with pytest.raises(ConfigError, match="response_model"):
        llm.call("x", response_model=BaseModel)
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(ConfigError, match="text only"):
        llm.call([{"role": "user", "content": [image]}])
