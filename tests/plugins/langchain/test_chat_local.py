"""ChatLocal is a whole LangChain chat model: streams, usage, tools, agents, cancels."""

# ruff: noqa: E402 - what the imports need is asked for first
from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("langchain_core")

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from agentrm.errors import ConfigError
from agentrm.models import LocalEngine, UnsupportedModel, UnsupportedSchema, catalog
from agentrm_langchain.chat_local import ChatLocal

ASK = "Tell me a story"


@tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """The weather of a city."""
    return f"sunny in {city}, 22 {unit}"


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@pytest.fixture(scope="module")
def chat() -> ChatLocal:
    return ChatLocal(model="tiny-random", device="cpu", max_tokens=24)


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def test_a_stream_adds_up_to_the_answer_and_carries_the_usage_once(chat: ChatLocal) -> None:
    answer = chat.invoke(ASK)
    chunks = list(chat.stream(ASK))
    assert len(chunks) > 2
    assert [chunk.usage_metadata is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    whole = merged(chunks)
    assert whole.content == answer.content
    assert whole.usage_metadata is not None and answer.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == answer.usage_metadata["total_tokens"]
    assert whole.usage_metadata["input_token_details"]["cache_read"] > 0  # the prompt was known by then
    assert answer.usage_metadata["input_tokens"] == chat.get_num_tokens_from_messages([HumanMessage(ASK)])
    assert answer.usage_metadata["output_tokens"] == 24
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == "tiny-random"


async def test_the_asynchronous_twins_give_the_same(chat: ChatLocal) -> None:
    answer = chat.invoke(ASK)
    twin = await chat.ainvoke(ASK)
    assert (twin.content, twin.usage_metadata) == (answer.content, answer.usage_metadata)
    whole = merged([chunk async for chunk in chat.astream(ASK)])
    assert (whole.content, whole.usage_metadata) == (answer.content, answer.usage_metadata)


def test_options_of_one_call_override_those_of_the_model(chat: ChatLocal) -> None:
    warm = chat.invoke(ASK, temperature=1.0, seed=5)
    assert (
        warm.content
        == ChatLocal(model="tiny-random", device="cpu", max_tokens=24, temperature=1, seed=5).invoke(ASK).content
    )
    assert warm.content != chat.invoke(ASK, temperature=1.0, seed=6).content
    short = chat.invoke(ASK, max_tokens=3)
    assert short.usage_metadata is not None
    assert short.usage_metadata["output_tokens"] == 3
    with pytest.raises(ConfigError, match="top_k"):
        chat.invoke(ASK, top_k=3)


def test_stop_strings_end_the_answer_and_are_no_part_of_it(chat: ChatLocal) -> None:
    whole = str(chat.invoke(ASK).content)
    stop = whole[4:7]
    cut = chat.invoke(ASK, stop=[stop])
    assert cut.content == whole[: whole.index(stop)]
    assert cut.response_metadata["finish_reason"] == "stop"
    own = ChatLocal(model="tiny-random", device="cpu", max_tokens=24, stop=[stop])
    assert own.invoke(ASK).content == cut.content


@pytest.mark.parametrize("choice", ["any", "required", True, "add", {"type": "function", "function": {"name": "add"}}])
def test_a_forced_call_is_made_and_its_arguments_fit(chat: ChatLocal, choice: Any) -> None:
    answer = chat.bind_tools([add], tool_choice=choice).invoke("What is 2 and 3?")
    (made,) = answer.tool_calls
    assert made["name"] == "add"
    assert {name: type(value) for name, value in made["args"].items()} == {"a": int, "b": int}
    assert made["id"]
    assert answer.response_metadata["finish_reason"] == "tool_calls"


def test_a_streamed_call_adds_up_to_valid_json(chat: ChatLocal) -> None:
    chunks = list(chat.bind_tools([get_weather], tool_choice="any").stream("Weather?"))
    whole = merged(chunks)
    (made,) = whole.tool_calls
    assert made["name"] == "get_weather"
    assert (
        json.loads("".join(part["args"] or "" for chunk in chunks for part in chunk.tool_call_chunks)) == made["args"]
    )


def test_none_means_an_answer_and_auto_decides(chat: ChatLocal) -> None:
    bound = chat.bind_tools([add, get_weather], tool_choice="none")
    assert bound.invoke("What is 2 and 3?").tool_calls == []
    auto = chat.bind_tools([add, get_weather])
    draws = [auto.invoke("What is 2 and 3?", temperature=50.0, seed=seed, max_tokens=1) for seed in range(30)]
    assert {draw.tool_calls[0]["name"] if draw.tool_calls else None for draw in draws} == {
        "add",
        "get_weather",
        None,
    }


def test_bad_tools_are_refused_when_they_are_bound(chat: ChatLocal) -> None:
    class Code(BaseModel):
        """A code."""

        code: str = Field(pattern="^[A-Z]+$")

    with pytest.raises(UnsupportedSchema, match="pattern"):
        chat.bind_tools([Code])
    with pytest.raises(ConfigError, match="tool_choice"):
        chat.bind_tools([add], tool_choice="subtract")


def test_structured_output_is_always_an_instance_of_the_schema(chat: ChatLocal) -> None:
    class Inner(BaseModel):
        level: Literal["low", "high"]
        score: float = Field(ge=0, le=1)

    class Report(BaseModel):
        """A report."""

        title: str = Field(min_length=1, max_length=20)
        inner: Inner
        tags: list[str] = Field(max_length=2)
        parent: int | None

    for seed in range(10):
        report = chat.with_structured_output(Report).invoke("Report!", temperature=2.0, seed=seed)
        assert isinstance(report, Report)


def test_an_agent_calls_its_tool_and_ends() -> None:
    agents = pytest.importorskip("langchain.agents")
    chat = ChatLocal(model="tiny-random", device="cpu", max_tokens=8, max_tool_rounds=1)
    agent = agents.create_agent(_eager(chat), [get_weather])
    messages = agent.invoke({"messages": [HumanMessage("Weather?")]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[1].tool_calls[0]["name"] == "get_weather"
    assert messages[2].status == "success"
    assert messages[3].tool_calls == []


def _eager(chat: ChatLocal) -> ChatLocal:
    """Its auto would rather call a tool than answer; what ends the agent is `max_tool_rounds`."""

    class Eager(LocalEngine):
        def respond(self, messages: Any, tools: Any = (), *, tool_choice: str = "auto", **options: Any) -> Any:
            choice = "any" if tool_choice == "auto" and tools else tool_choice
            return super().respond(messages, tools, tool_choice=choice, **options)

    chat._engine = Eager([chat.local_engine()._loaded])
    return chat


async def test_a_cancelled_call_frees_its_caller_and_stops_at_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = ChatLocal(model="tiny-random", device="cpu", max_tokens=4000)
    started, gone = threading.Event(), threading.Event()
    usages: list[Any] = []
    respond = chat.local_engine().respond

    def watched(*args: Any, **options: Any) -> Iterator[Any]:
        for piece in respond(*args, **options):
            started.set()
            assert gone.wait(60)
            usages.append(piece.usage)
            yield piece

    monkeypatch.setattr(LocalEngine, "respond", lambda self, *args, **options: watched(*args, **options))
    task = asyncio.ensure_future(chat.ainvoke(ASK))
    assert await asyncio.to_thread(started.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # although the thread is still busy
    gone.set()
    for thread in threading.enumerate():
        if thread.name == "agentrm-generate":
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()
    assert len(usages) <= 2  # far from 4000 tokens: the piece in hand and the end


async def test_many_calls_at_once_give_what_each_gives_alone(chat: ChatLocal) -> None:
    alone = [chat.invoke(f"Question {n}").content for n in range(6)]
    together = await asyncio.gather(*(chat.ainvoke(f"Question {n}") for n in range(6)))
    assert [message.content for message in together] == alone


def test_a_conversation_with_tools_is_counted_as_it_is_sent(chat: ChatLocal) -> None:
    conversation: list[BaseMessage] = [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}]),
        AIMessage("", tool_calls=[{"name": "get_weather", "args": {"city": "Oslo"}, "id": "1"}]),
        ToolMessage("rainy", tool_call_id="1"),
    ]
    answer = chat.bind_tools([get_weather], tool_choice="none").invoke(conversation)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == chat.get_num_tokens_from_messages(conversation, [get_weather])
    text = "naïve"
    assert chat.get_num_tokens(text) == len(text.encode())  # one token per byte in this model


def test_content_that_is_not_text_is_refused(chat: ChatLocal) -> None:
    with pytest.raises(UnsupportedModel, match="image_url"):
        chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])])


def test_the_profile_and_the_names_need_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **options: Any) -> None:
        raise AssertionError("nothing has to be loaded for that")

    monkeypatch.setattr(LocalEngine, "load", load)
    chat = ChatLocal(seed=3)
    assert chat.profile is not None
    assert chat.profile["max_input_tokens"] == 8192
    assert chat._get_ls_params()["ls_model_name"] == "smollm2-135m"
    assert chat._get_llm_string() != ChatLocal(seed=4)._get_llm_string()


@pytest.mark.model
def test_the_real_model_runs_an_agent_to_its_end() -> None:
    agents = pytest.importorskip("langchain.agents")
    if catalog.installed_file(catalog.lookup("smollm2-135m")) is None:
        pytest.skip("its weights are not installed: agentrm models fetch smollm2-135m")
    chat = ChatLocal(device="cpu", max_tokens=20, max_tool_rounds=1)
    agent = agents.create_agent(chat, [get_weather])
    messages = agent.invoke({"messages": [HumanMessage("What's the weather in Paris?")]})["messages"]
    assert messages[-1].type == "ai"
    assert messages[-1].tool_calls == []
    assert sum(bool(getattr(message, "tool_calls", None)) for message in messages) <= 1
