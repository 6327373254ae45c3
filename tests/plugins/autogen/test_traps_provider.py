"""Trap 9 of AutoGen, streams, retries and cancellation, with the real OpenAI client against a loopback provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytest.importorskip("autogen_agentchat")
pytest.importorskip("autogen_ext.models.openai")

from autogen_core import CancellationToken
from autogen_core.models import CreateResult
from autogen_ext.models.cache import ChatCompletionCache

import agentrm
from agentrm.simulation.provider import Behaviour, StubProvider, ToolCall
from agentrm_autogen import GatedClient
from tests.plugins.autogen.scenes import (
    ASK,
    Scripted,
    agent_of,
    granted,
    manager,
    openai_client,
    run_async,
    running,
    team_of,
    tool_of,
)
from tests.waiting import come


async def _created(client: Any, token: CancellationToken | None = None) -> str:
    return (await client.create(ASK, cancellation_token=token)).content


async def _streamed(client: Any, token: CancellationToken | None = None) -> str:
    chunks = [chunk async for chunk in client.create_stream(ASK, cancellation_token=token)]
    assert isinstance(chunks[-1], CreateResult)
    return "".join(chunk for chunk in chunks if isinstance(chunk, str))


WAYS: dict[str, Callable[..., Any]] = {"create": _created, "create_stream": _streamed}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_the_provider_never_sees_more_calls_than_lanes_and_every_lane_is_used(way: str) -> None:
    rm, sent, go = manager(2), [0], asyncio.Event()

    async def hold(_request: httpx.Request) -> None:
        sent[0] += 1
        await go.wait()

    with StubProvider(Behaviour(service_s=0.02)) as provider:

        async def main() -> None:
            async with httpx.AsyncClient(event_hooks={"request": [hold]}) as http:
                client = rm.attach(openai_client(provider, http_client=http))
                calls = [asyncio.create_task(WAYS[way](client)) for _ in range(8)]
                await come(lambda: sent[0] == 2 and rm.statistics().waiting == 6)
                assert running(rm) == 2, "both are inside before either is let go"
                go.set()
                await asyncio.gather(*calls)

        run_async(main)
        assert provider.peak_concurrency <= 2
        assert provider.statistics().arrived == 8
    assert granted(rm) == sent[0] == 8


@ways
def test_trap_09_a_refusal_is_waited_out_inside_the_client_and_the_team_never_sees_it(way: str) -> None:
    rm = manager()
    with StubProvider([Behaviour("rate", retry_after_s=0.05), *[Behaviour(text="said")] * 9]) as provider:
        client = openai_client(provider, max_retries=2)
        team = rm.attach(team_of(agent_of(client, model_client_stream=way == "create_stream"), turns=2))
        result = run_async(lambda: team.run(task="go"))
        assert result.messages[-1].content == "said"
        assert provider.statistics().arrived == granted(rm) == 2, "each request had a lease: the client does not retry"
    assert client._client.max_retries == 2, "the user's own client is as it was"


def test_trap_09_a_final_refusal_loses_its_type_in_a_team_and_keeps_it_outside() -> None:
    import openai

    rm = manager()
    with StubProvider(Behaviour("quota")) as provider:
        client = rm.attach(openai_client(provider))
        with pytest.raises(openai.RateLimitError):
            run_async(lambda: client.create(ASK))
        with pytest.raises(agentrm.ScopeClosed):
            run_async(lambda: client.create(ASK))
        with pytest.raises(RuntimeError, match="ScopeClosed"):
            run_async(lambda: team_of(agent_of(client)).run(task="go"))
        assert provider.statistics().arrived == 1
    assert running(rm) == 0


def test_limits_are_kept_across_the_agents_of_teams() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(9, clock=clock, pools={"default": {"limits": [{"requests": 3, "per": 60}]}})
    with StubProvider() as provider:
        client = openai_client(provider)

        async def main() -> None:
            teams = [rm.attach(team_of(agent_of(client), turns=2)) for _ in range(7)]
            tasks = [asyncio.create_task(team.run(task="go")) for team in teams]
            for arrived in (3, 6):
                await come(lambda n=arrived: granted(rm) == n and rm.statistics().waiting == 7 - n)
                clock.advance(61)
            await asyncio.gather(*tasks)

        run_async(main)
        assert provider.statistics().arrived == 7


@ways
@pytest.mark.parametrize("where", ["queue", "flight"])
def test_a_token_ends_a_call_in_the_queue_and_in_flight(way: str, where: str) -> None:
    rm, token = manager(), CancellationToken()
    with StubProvider([Behaviour("hang"), Behaviour(text="next")]) as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> str:
            first_token = token if where == "flight" else CancellationToken()
            first = asyncio.create_task(WAYS[way](client, first_token))
            await come(lambda: provider.open_requests == 1)
            second = asyncio.create_task(WAYS[way](client, token if where == "queue" else None))
            await come(lambda: rm.statistics().waiting == 1)
            token.cancel()
            gone = second if where == "queue" else first
            await asyncio.wait({gone})
            assert gone.cancelled()
            if where == "flight":
                return await second
            assert rm.statistics().waiting == 0
            first_token.cancel()
            await asyncio.wait({first})
            return await WAYS[way](client)

        assert run_async(main) == "next"
        assert provider.statistics().arrived == 2, "what left the queue was never sent"
    assert running(rm) == 0


@ways
def test_a_token_ends_the_pause_between_two_attempts(way: str) -> None:
    clock = agentrm.VirtualClock()
    rm, token = manager(clock=clock), CancellationToken()
    with StubProvider(Behaviour("error")) as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> None:
            task = asyncio.create_task(WAYS[way](client, token))
            await come(lambda: provider.statistics().arrived == 1 and running(rm) == 0)
            token.cancel()
            await asyncio.wait({task})
            assert task.cancelled()

        run_async(main)
        assert provider.statistics().arrived == 1


def test_a_token_that_was_cancelled_before_sends_nothing() -> None:
    rm, token = manager(), CancellationToken()
    token.cancel()
    with StubProvider() as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> None:
            for way in WAYS.values():
                with pytest.raises(asyncio.CancelledError):
                    await way(client, token)

        run_async(main)
        assert provider.statistics().arrived == 0
    assert running(rm) == 0


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_stream_that_nobody_reads_on_frees_its_lane_and_ends_its_request(how: str) -> None:
    rm = manager()
    with StubProvider([Behaviour(output_tokens=400, gap_s=0.05), Behaviour()]) as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> None:
            stream = client.create_stream(ASK)
            await stream.__anext__()
            assert running(rm) == 1
            if how == "closed":
                await stream.aclose()
            else:
                del stream
            assert running(rm) == 0, "at once"
            await _created(client)
            await come(lambda: provider.open_requests == 0)

        run_async(main)
        assert [record.outcome for record in provider.log] == ["abandoned", "answered"]


def test_the_lane_is_free_when_the_final_result_is_handed_out() -> None:
    rm = manager()
    with StubProvider(Behaviour(text="one two")) as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> list[int]:
            return [running(rm) async for chunk in client.create_stream(ASK) if isinstance(chunk, CreateResult)]

        assert run_async(main) == [0]


@ways
def test_a_hung_call_is_reaped_and_tried_once_more(way: str) -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    with StubProvider([Behaviour("hang"), Behaviour(text="second")]) as provider:
        client = rm.attach(openai_client(provider))

        async def main() -> str:
            task = asyncio.create_task(WAYS[way](client))
            await come(lambda: provider.open_requests == 1)
            clock.advance(32)
            return await task

        assert run_async(main) == "second"
        assert provider.wait_until(lambda s: s.open_requests == 0)


def test_use_is_charged_as_reported_and_a_cached_answer_is_free() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, pools={"default": {"limits": [{"tokens": 100_000, "per": 60}]}})

    def left() -> int:
        (limit,) = rm.statistics().limits.values()
        return limit.level

    async def main(client: Any) -> None:
        usage = (await client.create(ASK)).usage
        assert left() == 100_000 - usage.prompt_tokens - usage.completion_tokens
        assert client.total_usage() == client.actual_usage() == usage
        before = left()
        await _streamed(client)
        assert 100 < before - left() < 400, "a stream without a usage frame is charged an estimate"

    with StubProvider(Behaviour(output_tokens=200)) as provider:
        client = rm.attach(openai_client(provider))
        run_async(lambda: main(client))

    class Remembers(Scripted):
        async def create(self, messages: Any, **more: Any) -> CreateResult:
            return (await super().create(messages, **more)).model_copy(update={"cached": True})

    before = left()
    cached = rm.attach(Remembers("said"))
    run_async(lambda: cached.create(ASK))
    run_async(lambda: _streamed(cached))
    assert left() == before


def test_a_client_with_a_cache_is_gated_behind_it() -> None:
    rm = manager()
    with StubProvider(Behaviour(text="said")) as provider:
        cache = rm.attach(ChatCompletionCache(openai_client(provider)))
        assert isinstance(cache, ChatCompletionCache)
        assert isinstance(cache.client, GatedClient)
        for _ in range(3):
            assert run_async(lambda: _created(cache)) == "said"
        assert provider.statistics().arrived == 1
    assert granted(rm) == 1, "an answer from the cache takes no lane"


def test_agents_call_their_tools_through_the_gate() -> None:
    rm = manager(tools=2)

    def population(city: str) -> str:
        """The population of a city."""
        return f"{city}: 0.7 million"

    plan = Behaviour(tool_calls=(ToolCall("population", {"city": "Oslo"}),), text="so many")
    with StubProvider(plan, strict_pairs=True) as provider:
        agent = rm.attach(
            agent_of(openai_client(provider), [tool_of(population, "population")], reflect_on_tool_use=True)
        )
        result = run_async(lambda: agent.run(task="How many people live in Oslo?"))
    assert result.messages[-1].content == "so many"
    assert (granted(rm), granted(rm, "tools")) == (2, 1)
