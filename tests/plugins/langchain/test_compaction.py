"""Compaction as middleware, in agents of LangChain whose provider refuses histories in which calls and results don't pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from langchain.agents import create_agent
from langchain.agents.middleware import ContextEditingMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from agentrm import ConfigError
from agentrm.context.compact import Compactor
from agentrm.context.convert_langchain import from_langchain
from agentrm.context.pairs import is_valid
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest
from agentrm_langchain import AgentRMMiddleware, CompactionMiddleware
from tests.plugins.langchain.scenes import manager, run_async

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
TOKENS = 2_000
LONG = "The warehouse reports what came in today, shelf by shelf. " * 40


@tool
def look_up(text: str) -> str:
    """Looks up."""
    return f"{LONG} The order number is ORD-7731-X." if text == "0" else LONG


class Provider(StubProvider):
    """Keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

        def choose(request: StubRequest) -> Behaviour:
            self.sent.append(request.messages)
            return Behaviour(text="done")

        super().__init__(choose, strict_pairs=True)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


def middleware(**more: Any) -> CompactionMiddleware:
    return CompactionMiddleware(TOKENS, compactor=Compactor(embedder=None), **more)


def agent_of(provider: Provider, *ours: Any, **more: Any) -> Any:
    model = ChatOpenAI(model="stub", base_url=provider.base_url, api_key="any")
    return create_agent(model, [look_up], middleware=[*ours, AgentRMMiddleware(manager())], **more)


def talk(turns: int = 10) -> list[Any]:
    """A conversation in which a tool was called again and again."""
    messages: list[Any] = []
    for n in range(turns):
        call = {"name": "look_up", "args": {"text": str(n)}, "id": f"call-{n}", "type": "tool_call"}
        messages += [
            HumanMessage(f"What about day {n}?", id=f"h{n}"),
            AIMessage("", tool_calls=[call], id=f"a{n}"),
            ToolMessage(look_up.invoke({"text": str(n)}), tool_call_id=f"call-{n}", id=f"t{n}"),
            AIMessage(f"Day {n} was quiet.", id=f"b{n}"),
        ]
    return [*messages, HumanMessage("And which order was it?", id="last")]


def size(messages: Any) -> int:
    return Compactor(embedder=None).counter.messages(from_langchain(messages))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("keep_history", [True, False])
def test_what_the_model_is_sent_stays_within_its_size_and_keeps_the_id(
    way: str, keep_history: bool, provider: Provider
) -> None:
    agent = agent_of(provider, middleware(keep_history=keep_history))
    state = {"messages": talk()}
    assert size(state["messages"]) > 2 * TOKENS
    result = agent.invoke(state) if way == "invoke" else run_async(lambda: agent.ainvoke(state))
    (sent,) = provider.sent
    assert "ORD-7731-X" in str(sent)
    assert sum(len(str(message["content"])) for message in sent) / 4 < TOKENS
    assert sent[-1]["content"] == "And which order was it?"
    assert (len(result["messages"]) == len(talk()) + 1) == keep_history, "the conversation itself is kept, or replaced"
    assert is_valid(from_langchain(result["messages"]))
    assert "agentrm_view" not in result, "the view is the middleware's own"


@pytest.mark.parametrize("keep_history", [True, False])
def test_between_two_compactions_it_only_grows(keep_history: bool, provider: Provider) -> None:
    """So the provider's prefix cache holds."""
    agent = agent_of(provider, middleware(keep_history=keep_history), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": talk()}, thread)
    for n in range(3):
        agent.invoke({"messages": [HumanMessage(f"More {n}?")]}, thread)
    first, *others = provider.sent
    for before, after in zip([first, *others], others, strict=False):
        assert after[: len(before)] == before


def test_a_conversation_that_was_changed_in_the_past_is_compacted_anew(provider: Provider) -> None:
    agent = agent_of(provider, middleware(), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": talk()}, thread)
    agent.invoke({"messages": [HumanMessage("What about the weather?", id="h0")]}, thread)
    assert "weather" in str(provider.sent[-1])
    assert sum(len(str(message["content"])) for message in provider.sent[-1]) / 4 < TOKENS


def test_a_short_conversation_is_left_as_it_is(provider: Provider) -> None:
    result = agent_of(provider, middleware(keep_history=False)).invoke({"messages": talk(1)})
    assert [message.id for message in result["messages"][:-1]] == [message.id for message in talk(1)]


def test_it_composes_with_the_middleware_that_clears_old_tool_results(provider: Provider) -> None:
    agent = agent_of(provider, middleware(), ContextEditingMiddleware())
    assert agent.invoke({"messages": talk()})["messages"][-1].text == "done"


@pytest.mark.parametrize(
    "given", [{"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": 9, "low": 0.9}, {"max_tokens": 9, "high": 1.1}]
)
def test_sizes_that_can_not_be_meant_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="CompactionMiddleware"):
        CompactionMiddleware(**given)
