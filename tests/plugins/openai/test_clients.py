"""Gated clients of OpenAI against a loopback provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")

import openai

import agentrm
from agentrm.adapters.conformance.harness import manager
from agentrm.simulation.provider import Behaviour, StubProvider
from agentrm_openai import gated_async_transport, gated_transport
from tests.plugins.openai.stub_http import httpx

MESSAGES: Any = [{"role": "user", "content": "hello"}]
ASKED: Any = {"model": "stub", "messages": MESSAGES}


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with StubProvider() as running:
        yield running


def client(provider: StubProvider, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=provider.base_url, api_key="any", **more)


def async_client(provider: StubProvider, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", **more)


def counting() -> agentrm.ResourceManager:
    """With a limit on tokens that does not refill while a test runs, so that `used` can read off what was charged."""
    return manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": [{"tokens": 10_000, "per": 3_600}]}})


def used(rm: agentrm.ResourceManager) -> int:
    (limit,) = rm.statistics().limits.values()
    return 10_000 - limit.level


def test_the_use_that_the_provider_reports_is_what_is_charged(provider: StubProvider) -> None:
    rm = counting()
    answer = rm.attach(client(provider)).chat.completions.create(**ASKED)
    assert answer.usage is not None
    assert used(rm) == answer.usage.total_tokens


def test_of_a_stream_the_last_frame_says_it(provider: StubProvider) -> None:
    rm, last = counting(), None
    more: Any = {"stream_options": {"include_usage": True}}
    for chunk in rm.attach(client(provider)).chat.completions.create(**ASKED, stream=True, **more):
        last = chunk.usage or last
    assert last is not None
    assert used(rm) == last.total_tokens


def test_without_such_a_frame_the_text_is_counted_and_never_nothing(provider: StubProvider) -> None:
    rm = counting()
    list(rm.attach(client(provider)).chat.completions.create(**ASKED, stream=True))
    assert 1 < used(rm) < 500


def test_what_a_copy_of_a_gated_client_sends_is_gated_too(provider: StubProvider) -> None:
    rm = manager()
    gated = rm.attach(client(provider), agent="writer")
    gated.with_options(timeout=9).chat.completions.create(**ASKED)
    gated.copy().chat.completions.create(**ASKED)
    assert rm.statistics().pools["default"].granted == 2


def test_the_client_itself_stays_as_it_is(provider: StubProvider) -> None:
    rm = manager()
    plain = client(provider)
    gated = rm.attach(plain)
    plain.chat.completions.create(**ASKED)
    assert rm.statistics().pools["default"].granted == 0
    assert isinstance(gated, openai.OpenAI) and type(gated).__name__ == "OpenAI"
    del gated
    plain.chat.completions.create(**ASKED)  # over connections that it still has


def test_what_names_no_model_passes(provider: StubProvider) -> None:
    rm = manager()
    assert rm.attach(client(provider)).models.list().data
    assert rm.statistics().pools["default"].granted == 0


def test_errors_of_ours_come_through_the_client_and_are_its_own_too(provider: StubProvider) -> None:
    rm = manager(pools={"default": {"limits": [{"tokens": 5, "per": 60}]}})
    with pytest.raises(agentrm.RequestTooLarge) as told:
        rm.attach(client(provider)).chat.completions.create(**ASKED, max_tokens=500)
    assert isinstance(told.value, openai.OpenAIError)
    assert provider.statistics().arrived == 0


def test_a_refusal_is_waited_out_by_the_gate_and_the_last_one_is_the_clients() -> None:
    rm = manager(pools={"default": {"retry": {"attempts": 2}}})
    with StubProvider(Behaviour("rate", retry_after_s=0.01)) as provider:
        gated = rm.attach(client(provider, max_retries=5))
        with pytest.raises(openai.RateLimitError) as told:
            gated.chat.completions.create(**ASKED)
        assert told.value.response.headers["retry-after"]
        assert provider.statistics().arrived == 2, "the client's own retries are off"


async def test_no_more_requests_at_once_than_lanes_through_clients_of_every_kind(provider: StubProvider) -> None:
    rm = manager(2)
    by_httpx = httpx.AsyncClient(transport=gated_async_transport(rm))
    clients = [
        rm.attach(async_client(provider)),
        rm.attach(async_client(provider), priority="background"),
        async_client(provider, http_client=by_httpx, max_retries=0),
    ]
    await asyncio.gather(*(c.chat.completions.create(**ASKED) for c in clients for _ in range(5)))
    assert provider.peak_concurrency <= 2
    pool = rm.statistics().pools["default"]
    assert (pool.granted, pool.in_use) == (15, 0)


def test_a_stream_that_is_left_early_frees_its_lane(provider: StubProvider) -> None:
    rm = manager()
    with rm.attach(client(provider)).chat.completions.create(**ASKED, stream=True) as stream:
        next(iter(stream))
        assert rm.statistics().running == 1
    assert rm.statistics().running == 0


def test_plain_httpx_may_be_used_as_well(provider: StubProvider) -> None:
    rm = manager()
    with httpx.Client(transport=gated_transport(rm, agent="script")) as http:
        answer = http.post(f"{provider.base_url}/chat/completions", json=ASKED)
    assert answer.json()["choices"]
    assert rm.statistics().pools["default"].granted == 1


def test_who_can_not_be_attached_is_told_what_to_write() -> None:
    rm = manager()
    with pytest.raises(agentrm.adapters.AttachError, match="gated_transport"):
        rm.attach(httpx.Client())
    with pytest.raises(agentrm.ConfigError, match="colour"):
        rm.attach(openai.OpenAI(api_key="any"), colour="red")


async def test_a_cancelled_call_leaves_the_queue(provider: StubProvider) -> None:
    rm = manager()
    create = rm.attach(async_client(provider)).chat.completions.create
    holder = rm.lease().acquire()
    call = asyncio.create_task(create(**ASKED))
    while rm.statistics().waiting == 0:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rm.statistics().waiting == 0
    holder.release()
    assert provider.statistics().arrived == 0


async def test_what_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone(
    provider: StubProvider,
) -> None:
    old, new = manager(), manager()
    sync, of_a_loop = old.attach(client(provider)), old.attach(async_client(provider))
    old.close()
    new.attach(sync).chat.completions.create(**ASKED)
    await new.attach(of_a_loop).chat.completions.create(**ASKED)
    assert new.statistics().pools["default"].granted == 2
