"""The stub provider's limits are exact, and each way to tell a wait is understood by our reader."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from agentrm.limits.headers import read_headers  # noqa: E402
from agentrm.limits.provider_errors import read_error  # noqa: E402
from agentrm.simulation.provider import Behaviour, Limit, StubProvider  # noqa: E402
from agentrm.simulation.provider_limits import Entry, Refusal, Windows  # noqa: E402
from tests.simulation.asking import FAST, ended, post  # noqa: E402


def test_a_limit_answers_429_with_the_wait() -> None:
    with StubProvider(FAST, limits=[Limit(requests=2, per_s=36)], time_scale=100) as provider:
        assert [post(provider).status_code for _ in range(2)] == [200, 200]
        refused = post(provider)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 3500 < float(refused.headers["retry-after"]) <= 3600
        ended(provider, 3)
        statistics = provider.statistics()
    assert (statistics.http_429, statistics.outcomes["answered"], statistics.peak_concurrency) == (1, 2, 1)


def test_a_limit_is_exact_in_every_window_and_its_wait_is_a_promise(rng: random.Random) -> None:
    limit = Limit(requests=5, tokens=40, per_s=10)
    windows, admitted, now = Windows([limit]), [], 0.0
    for _ in range(2000):
        tokens = rng.randint(1, 20)
        answer = windows.admit(now, "m", tokens)
        if isinstance(answer, Refusal):
            assert not isinstance(windows.admit(now + answer.retry_after_s - 1e-6, "m", tokens), Entry)
            now += answer.retry_after_s + 1e-9
            answer = windows.admit(now, "m", tokens)
            assert isinstance(answer, Entry)
        admitted.append(answer)
        recent = [entry for entry in admitted if entry.at_s > now - 10]
        assert len(recent) <= 5
        assert sum(entry.tokens for entry in recent) <= 40
        now += rng.random()
    assert isinstance(never := windows.admit(now, "m", 41), Refusal)
    assert never.retry_after_s == float("inf")


def test_every_way_to_tell_a_wait_is_understood_by_our_reader() -> None:
    for hint in ("retry-after", "retry-after-ms", "retry-after-date", "text", "x-ratelimit"):
        with StubProvider(FAST, limits=[Limit(requests=1, per_s=40)], hints=(hint,)) as provider:
            post(provider)
            refused = post(provider)
            with pytest.raises(httpx.HTTPStatusError) as caught:
                refused.raise_for_status()
            error = read_error(caught.value)
            assert error is not None
            assert error.retry_after_s is not None, hint
            assert 35 < error.retry_after_s <= 41, hint
    with StubProvider(FAST, limits=[Limit(requests=0, per_s=40)], hints=()) as provider:
        reply = post(provider)
        assert reply.status_code == 429
        assert not read_headers(reply.headers)


def test_token_limits_count_the_prompt_and_the_answer() -> None:
    with StubProvider(
        Behaviour(output_tokens=20), limits=[Limit(tokens=60, per_s=60)], hints=("x-ratelimit",)
    ) as provider:
        first = post(provider)
        assert first.status_code == 200
        ended(provider, 1)
        second = post(provider, max_tokens=20)
        limits = read_headers(second.headers)
        assert (limits.tokens.limit, second.status_code) == (60, 200)
        ended(provider, 2)
        third = post(provider, max_tokens=20)
        assert third.status_code == 429
        assert read_headers(third.headers).tokens.remaining == 60 - 2 * 27
        too_large = post(provider, max_tokens=100)
    assert too_large.status_code == 429
    assert "Request too large" in too_large.json()["error"]["message"]


def test_a_limit_by_model_leaves_the_others_alone() -> None:
    with StubProvider(FAST, limits=[Limit(requests=1, per_s=60, scope="model")]) as provider:
        assert [post(provider, model=model).status_code for model in ("m1", "m1", "m2")] == [200, 429, 200]
