"""Traps 18, 19 and 20 with the real OpenAI client against a loopback provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from langchain_core.exceptions import ModelRateLimitError
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

import agentrm
from agentrm.adapters.conformance.harness import Threads
from agentrm.simulation.provider import Behaviour, Limit, StubProvider
from agentrm_langchain import AgentRMMiddleware
from tests.plugins.langchain.scenes import HELLO, agent_of, granted, manager, run_async, running
from tests.waiting import come

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def chat(provider: StubProvider, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model="stub", base_url=provider.base_url, api_key="any", **more)


@pytest.fixture
def refusing() -> Iterator[StubProvider]:
    with StubProvider([Behaviour("rate", retry_after_s=0.05), *[Behaviour()] * 9]) as provider:
        yield provider


def test_trap_18_the_clients_own_error_comes_out_of_the_graph_with_its_headers() -> None:
    rm = manager(pools={"default": {"retry": {"attempts": 2}}})
    with StubProvider(Behaviour("rate", retry_after_s=0.05)) as provider:
        agent = agent_of(chat(provider), (), AgentRMMiddleware(rm))
        with pytest.raises(ModelRateLimitError) as caught:
            agent.invoke(HELLO)
    assert caught.value.response.headers["retry-after"]
    assert "langchain" in str(caught.value.__notes__) or caught.value.__notes__, "LangGraph says in which task"
    assert granted(rm) == 2
    assert running(rm) == 0


def test_trap_18_a_quota_is_final_and_says_so_at_once() -> None:
    rm = manager()
    with StubProvider(Behaviour("quota")) as provider:
        model = rm.attach(chat(provider))
        with pytest.raises(ModelRateLimitError):
            model.invoke("hello")
        with pytest.raises(agentrm.ScopeClosed):
            model.invoke("hello")
        assert provider.statistics().arrived == 1


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_trap_19_each_request_has_a_lease_because_the_client_does_not_retry(refusing: StubProvider, way: str) -> None:
    rm = manager()
    model = chat(refusing, max_retries=2)
    gated = rm.attach(model)

    async def joined() -> str:
        return "".join([chunk.text async for chunk in gated.astream("hello")])

    ways = {
        "invoke": lambda: gated.invoke("hello").text,
        "stream": lambda: "".join(chunk.text for chunk in gated.stream("hello")),
        "ainvoke": lambda: run_async(lambda: gated.ainvoke("hello")).text,
        "astream": lambda: run_async(joined),
    }
    assert ways[way]()
    assert refusing.statistics().arrived == granted(rm) == 2
    assert model.root_client.max_retries == 2, "the user's own model is as it was"
    assert gated._get_llm_string() == model._get_llm_string(), "and finds the same answers in a cache"


def test_trap_20_a_stream_of_the_real_client_is_charged_with_and_without_a_usage_frame() -> None:
    limits = [{"tokens": 100_000, "per": 3600}]
    with StubProvider(Behaviour(output_tokens=200)) as provider:
        for usage in (True, False):
            rm = manager(pools={"default": {"limits": limits}})
            list(rm.attach(chat(provider, stream_usage=usage)).stream("hello"))
            (limit,) = rm.statistics().limits.values()
            charged = limit.capacity - limit.level
            assert 100 < charged < 500, (usage, charged)


def test_the_cap_holds_at_the_server() -> None:
    rm = manager(2)
    with StubProvider(Behaviour(service_s=0.02)) as provider:
        gated = rm.attach(chat(provider))
        threads = Threads(*[lambda: gated.invoke("hello").text] * 5)

        async def main() -> list[Any]:
            return await asyncio.gather(*[gated.ainvoke("hello") for _ in range(5)])

        assert len(run_async(main)) == 5
        assert all(threads.outcomes())
        assert provider.peak_concurrency <= 2
        assert provider.statistics().arrived == granted(rm) == 10


def test_nobody_fails_of_a_limit_that_is_tighter_than_the_demand() -> None:
    rm = manager(4)
    with StubProvider(limits=[Limit(requests=3, per_s=0.3)]) as provider:
        gated = rm.attach(chat(provider))

        async def main() -> list[Any]:
            return await asyncio.gather(*[gated.ainvoke("hello") for _ in range(8)])

        assert all(answer.text for answer in run_async(main))


def test_a_stream_that_the_user_drops_stops_the_server() -> None:
    rm = manager()
    with StubProvider(Behaviour(output_tokens=10_000, gap_s=0.005)) as provider:
        gated = rm.attach(chat(provider))

        async def main() -> None:
            async for _ in gated.astream([HumanMessage("hello")]):
                break
            await come(lambda: running(rm) == 0)

        run_async(main)
        for _ in gated.stream("hello"):
            break
        assert provider.wait_until(lambda statistics: provider.open_requests == 0), "it goes on sending to nobody"
    assert running(rm) == 0


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_what_the_provider_says_is_left_corrects_our_own_count(way: str) -> None:
    """Somebody else uses the same key: three requests of ours are possible, not a hundred."""
    rm = manager(pools={"default": {"limits": [{"requests": 100, "per": 3600}]}})
    with StubProvider(limits=[Limit(requests=4, per_s=3600)], hints=["x-ratelimit"]) as provider:
        model = rm.attach(chat(provider, include_response_headers=True))
        assert list(model.stream("hello")) if way == "stream" else model.invoke("hello")
    (limit,) = rm.statistics().limits.values()
    assert limit.level <= 4
