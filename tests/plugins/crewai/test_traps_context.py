"""Trap 14: what CrewAI's own compaction costs and leaves undone."""

from __future__ import annotations

from typing import Any

import pytest

from agentrm.adapters.conformance import Refuse
from agentrm.context.convert_openai import from_openai
from agentrm.context.pairs import repair
from tests.plugins.crewai.scenes import Provider, StubLLM, Work, agent_of, calling, crew_of, granted, manager

LINES = "\n".join(f"line {i}: nothing of note happened at station {i}" for i in range(400))
FOUND = f"{LINES[:9000]}\nERROR: order A-77193 failed with code E4412 in /srv/orders/77193.json\n{LINES[9000:]}"


def history(results: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a clerk."},
        {"role": "user", "content": "Find out what became of order A-77193."},
    ]
    for i in range(results):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"at": {i}}}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "name": "look", "content": FOUND if i == 1 else LINES})
        messages.append({"role": "user", "content": "Analyze the result."})
    return messages


def test_trap_14_a_history_is_compacted_in_place_and_no_model_is_asked() -> None:
    rm, provider = manager(), Provider()
    llm = rm.attach(StubLLM(source=provider, window=4000))
    messages = held = history(6)
    llm.summarize_messages(messages, [])
    assert messages is held
    assert provider.calls == granted(rm) == 0
    assert llm.get_input_tokens_count(messages) <= 2000, "down to the low watermark"
    assert messages[:2] == history(0), "the system text and the task stay as they are"
    assert "/srv/orders/77193.json" in str(messages[2:]) and "E4412" in str(messages[2:]), "what cannot be guessed is kept"
    assert not repair(from_openai(messages)).events, "each call with its result"


def test_trap_14_it_always_becomes_less_also_where_the_window_is_not_known() -> None:
    llm = manager().attach(StubLLM(source=Provider(), window=1_000_000))
    messages = history(4)
    before = llm.get_input_tokens_count(messages)
    llm.summarize_messages(messages, [])
    assert llm.get_input_tokens_count(messages) <= before / 2


def test_trap_14_a_request_that_stands_alone_is_shortened_too() -> None:
    """CrewAI leaves it, and the request goes out too long."""
    rm, provider = manager(), Provider()
    llm = StubLLM(source=provider, window=2000)
    agent = agent_of(llm)
    crew = rm.attach(crew_of(agent))
    crew.tasks[0].description = f"Say what failed.\n{FOUND}"
    crew.kickoff()
    (sent,) = crew.agents[0].llm.heard
    assert crew.agents[0].llm.get_input_tokens_count(sent) <= 2000
    assert "Say what failed." in str(sent) and "E4412" in str(sent)
    assert granted(rm) == 1


def test_trap_14_a_provider_that_finds_it_too_long_is_asked_again_with_less() -> None:
    class Small(StubLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if len(str(messages)) > 20_000:
                raise ValueError("context_length_exceeded")
            return super().call(messages, *args, **kwargs)

    rm = manager()
    llm = Small(source=Provider(), says=["done"], window=10_000_000)
    crew = rm.attach(crew_of(agent_of(llm)))
    crew.tasks[0].description = f"Say what failed.\n{FOUND * 2}"
    assert crew.kickoff().raw == "done"


def test_trap_14_attachments_outlive_their_message() -> None:
    llm = manager().attach(StubLLM(source=Provider(), window=4000))
    messages = history(6)
    messages.insert(4, {"role": "user", "content": LINES, "files": {"map": "a file"}})
    llm.summarize_messages(messages, [])
    assert {"map": "a file"} in [message.get("files") for message in messages]


def test_trap_14_a_sync_llm_has_async_code_once_it_is_gated() -> None:
    from tests.plugins.crewai.scenes import run_async

    rm = manager()
    plain = StubLLM(source=Provider())
    with pytest.raises(NotImplementedError):
        run_async(lambda: plain.acall("hello"))
    assert run_async(lambda: rm.attach(plain).acall("hello")) == "one two three"
    assert granted(rm) == 1


def test_a_long_run_of_tools_stays_within_the_window() -> None:
    rm = manager()
    says = [*[calling("look", at=i) for i in range(8)], "done"]

    class Look(Work):
        name: str = "look"
        description: str = "looks"

        def _run(self, at: int = 0) -> str:
            return LINES

    llm = StubLLM(source=Provider(), says=says, window=9000)
    crew = rm.attach(crew_of(agent_of(llm, [Look(fn=None)], use_better_compaction=False)))
    assert crew.kickoff().raw == "done"
    gated = crew.agents[0].llm
    assert all(gated.get_input_tokens_count(sent) <= 9000 for sent in gated.heard)
    assert len(gated.heard) == granted(rm) == 9, "no call beside those of the agent"


def test_nothing_is_counted_at_the_provider() -> None:
    """Some LLMs of CrewAI ask their provider for the size of every request before they send it."""

    class Asks(StubLLM):
        def get_input_tokens_count(self, *_: Any) -> int:
            raise AssertionError("a request past every limit")

    rm = manager()
    llm = rm.attach(Asks(source=Provider(Refuse(500))))
    assert 0 < llm.get_input_tokens_count("hello " * 10, tools=[{"name": "x", "parameters": {}}]) < 100
