"""Trap 10 of AutoGen and the rest of the compacting context: pairs, size, state, and nothing lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_core import CancellationToken, FunctionCall
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    UserMessage,
)

import agentrm
from agentrm.context.compact import Compactor
from agentrm.context.convert_autogen import from_autogen
from agentrm.context.pairs import is_valid
from agentrm.simulation.provider import Behaviour, StubProvider, ToolCall
from agentrm_autogen import CompactingContext
from tests.plugins.autogen.scenes import (
    Scripted,
    agent_of,
    calling,
    openai_client,
    run_async,
    team_of,
    tool_of,
)
from tests.waiting import come

PLAIN = Compactor(embedder=None)


def context_of(max_tokens: int, **more: Any) -> CompactingContext:
    return CompactingContext(max_tokens, compactor=Compactor(embedder=None), **more)


def turn(i: int, words: int = 60) -> list[Any]:
    """A request, two calls, their results, an answer."""
    calls = [FunctionCall(f"call-{i}-{n}", json.dumps({"n": n}), "look") for n in range(2)]
    results = [
        FunctionExecutionResult(content=f"{'word ' * words}{call.id}", name="look", call_id=call.id) for call in calls
    ]
    return [
        UserMessage(content=f"question {i}: look at /srv/data/{i}.csv", source="user"),
        AssistantMessage(content=calls, thought=f"thinking {i}", source="worker"),
        FunctionExecutionResultMessage(content=results),
        AssistantMessage(content=f"answer {i}. " + "word " * words, source="worker"),
    ]


async def filled(context: ChatCompletionContext, turns: int) -> ChatCompletionContext:
    for i in range(turns):
        for message in turn(i):
            await context.add_message(message)
    return context


def test_trap_10_a_call_never_loses_its_result_whatever_the_size() -> None:
    async def main() -> None:
        for max_tokens in (100, 700, 4000):
            context = context_of(max_tokens)
            whole: list[Any] = []
            for i in range(8):
                for message in turn(i):
                    await context.add_message(message)
                    whole.append(message)
                    shown = await context.get_messages()
                    assert is_valid(from_autogen(shown))
            assert list(context.history) == whole, "nothing is discarded"
            assert shown[-1].content == whole[-1].content or max_tokens < 700

    run_async(main)


def test_trap_10_what_is_shown_stays_within_the_window_and_grows_in_between() -> None:
    async def main() -> int:
        context, compactions, before = context_of(2000), 0, list[Any]()
        for i in range(20):
            for message in turn(i):
                await context.add_message(message)
            shown = [m.model_dump_json() for m in await context.get_messages()]
            assert PLAIN.counter.messages(from_autogen(await context.get_messages())) <= 2000
            if shown[: len(before)] != before:
                compactions += 1
            before = shown
        return compactions

    assert 2 <= run_async(main) <= 8, "in batches, not at each turn"


def test_a_short_history_is_shown_as_it_is() -> None:
    async def main() -> None:
        context = await filled(context_of(100_000), 3)
        assert await context.get_messages() == [m for i in range(3) for m in turn(i)]
        await context.clear()
        assert await context.get_messages() == []

    run_async(main)


def test_a_call_that_was_broken_off_is_shown_with_its_end() -> None:
    """A run that is cancelled in the middle of a tool leaves a call without a result in the agent's context."""

    async def main() -> None:
        context = context_of(10_000)
        await context.add_message(AssistantMessage(content=calling("look"), source="worker"))
        await context.add_message(UserMessage(content="and?", source="user"))
        _, result, request = await context.get_messages()
        assert "interrupted" in result.content[0].content
        assert request.content == "and?"

    run_async(main)


def test_state_brings_back_the_history_and_what_was_shown_of_it() -> None:
    async def main() -> None:
        context = await filled(context_of(1500), 12)
        shown = await context.get_messages()
        state = json.loads(json.dumps(await context.save_state()))
        again = context_of(1500)
        await again.load_state(state)
        assert await again.get_messages() == shown
        assert again.history == context.history
        await again.add_message(turn(99)[0])
        assert (await again.get_messages())[:-1] == shown
        plain = UnboundedChatCompletionContext()
        await plain.load_state(state)
        assert await plain.get_messages() == list(context.history), "AutoGen's own contexts read it too"
        await again.load_state(await plain.save_state())
        assert again.history == context.history
        assert is_valid(from_autogen(await again.get_messages()))

    run_async(main)


def test_the_component_round_trips() -> None:
    context = CompactingContext(5000, high=0.9, low=0.4, initial_messages=turn(0))
    again = ChatCompletionContext.load_component(context.dump_component())
    assert isinstance(again, CompactingContext)
    assert again._to_config() == context._to_config()
    assert again.history == context.history


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"max_tokens": 10, "low": 0.9}, {"max_tokens": 10, "high": 1.5}])
def test_a_size_that_cannot_work_fails_at_once(bad: dict[str, Any]) -> None:
    with pytest.raises(agentrm.ConfigError):
        CompactingContext(**bad)


def test_a_team_whose_contexts_overflow_goes_on_at_a_strict_provider() -> None:
    def look(place: str) -> str:
        """What is there."""
        return f"{place}: " + "much " * 300

    def plan(request: Any) -> Behaviour:
        return Behaviour(tool_calls=(ToolCall("look", {"place": f"/srv/{request.index}"}),), text="so it is")

    with StubProvider(plan, strict_pairs=True) as provider:
        rm = agentrm.ResourceManager()
        agent = agent_of(
            openai_client(provider), [tool_of(look, "look")], max_tool_iterations=3, model_context=context_of(1200)
        )
        team = rm.attach(team_of(agent, turns=14))
        run_async(lambda: team.run(task="Look around."))
        assert {record.outcome for record in provider.log} == {"answered"}
        assert max(record.prompt_tokens for record in provider.log) < 2000
    assert len(agent.model_context.history) >= 8


def test_a_run_cancelled_in_the_middle_of_a_tool_goes_on_at_a_strict_provider() -> None:
    begun = asyncio.Event()

    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    with StubProvider(Behaviour(tool_calls=(ToolCall("hang"),), text="went on"), strict_pairs=True) as provider:
        rm = agentrm.ResourceManager()
        agent = rm.attach(agent_of(openai_client(provider), [tool_of(hang, "hang")], model_context=context_of(10_000)))

        async def main() -> Any:
            token = CancellationToken()
            task = asyncio.create_task(agent.run(task="go", cancellation_token=token))
            await come(begun.is_set)
            token.cancel()
            await asyncio.wait({task})
            agent._workbench = []  # so that it does not call it again
            return await agent.run(task="And now?")

        assert run_async(main).messages[-1].content == "went on"


def test_the_scripted_agent_sees_the_compacted_list() -> None:
    client = Scripted("said " * 200)
    agent = agent_of(client, model_context=context_of(800))

    async def main() -> None:
        for i in range(8):
            await agent.run(task=f"question {i}")

    run_async(main)
    assert len(client.heard[-1]) < 1 + len(agent.model_context.history) == 17, "the system message is the agent's"
