"""The stub provider answers real clients as it was told to, and knows what happened to each request."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from typing import Any, get_args

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from agentrm.limits.provider_errors import read_error  # noqa: E402
from agentrm.simulation.provider import (  # noqa: E402
    AGENT_HEADER,
    Behaviour,
    Mix,
    SimulationError,
    StubProvider,
    StubRequest,
    pair_fault,
)
from agentrm.simulation.provider_behaviour import Kind  # noqa: E402
from tests.simulation.asking import FAST, USER, body, ended, post, streamed  # noqa: E402


def test_a_plain_answer_has_text_usage_and_a_record() -> None:
    with StubProvider(Behaviour(output_tokens=5, service_s=0.01)) as provider:
        reply = post(provider, user="planner").json()
        (record,) = ended(provider, 1)
    assert len(reply["choices"][0]["message"]["content"].split()) == 5
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    assert (record.outcome, record.status, record.model, record.agent) == ("answered", 200, "m", "planner")
    assert (record.prompt_tokens, record.output_tokens, record.concurrency) == (7, 5, 1)
    assert record.client_closed_s is None
    assert record.first_chunk_s is not None
    assert record.first_chunk_s - record.arrived_s >= 0.01


def test_a_stream_has_a_chunk_per_step_and_usage_only_if_asked() -> None:
    with StubProvider(Behaviour(output_tokens=5, tokens_per_chunk=2)) as provider:
        for asked in (False, True):
            more = {"stream_options": {"include_usage": True}} if asked else {}
            with streamed(provider, **more) as reply:
                lines = [line for line in reply.iter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            assert ('"completion_tokens": 5' in lines[-2]) is asked
        records = ended(provider, 2)
    assert [(record.outcome, record.chunks_sent, record.output_tokens) for record in records] == [
        ("answered", 3, 5)
    ] * 2


def test_usage_can_be_left_out_even_where_it_is_asked_for() -> None:
    with StubProvider(Behaviour(usage=False)) as provider:
        assert "usage" not in post(provider).json()
        with streamed(provider, stream_options={"include_usage": True}) as reply:
            assert "usage" not in reply.read().decode()


def test_max_tokens_cuts_an_answer() -> None:
    with StubProvider(Behaviour(text="one two three")) as provider:
        choice = post(provider, max_tokens=2).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "length")


def test_the_agent_comes_from_the_header_before_the_body() -> None:
    with StubProvider(FAST) as provider:
        post(provider, user="body", headers={AGENT_HEADER: "header"})
        assert ended(provider, 1)[0].agent == "header"


def test_models_are_listed_and_other_routes_are_not_found() -> None:
    with StubProvider(models=("a", "b")) as provider:
        listed = httpx.get(f"{provider.base_url}/models").json()
        assert [model["id"] for model in listed["data"]] == ["a", "b"]
        assert httpx.get(f"{provider.base_url}/nothing").status_code == 404
        assert provider.statistics().arrived == 0


def test_equal_seeds_and_order_give_equal_answers() -> None:
    def run(seed: int) -> list[tuple[int, str]]:
        plan = Mix((3, Behaviour(output_tokens=(1, 30))), (1, Behaviour("error")))
        with StubProvider(plan, seed=seed) as provider:
            replies = [post(provider) for _ in range(12)]
        return [(reply.status_code, reply.text) for reply in replies]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert {status for status, _ in run(1)} == {200, 500}


def test_a_draw_by_agent_does_not_depend_on_how_agents_interleave(rng: random.Random) -> None:
    def run(order: list[str]) -> dict[str, list[int]]:
        met: dict[str, list[int]] = {"a": [], "b": []}
        with StubProvider(Mix((1, FAST), (1, Behaviour("error")), by="agent"), seed=3) as provider:
            for agent in order:
                met[agent].append(post(provider, user=agent).status_code)
        return met

    order = ["a"] * 6 + ["b"] * 6
    shuffled = rng.sample(order, len(order))
    assert run(order) == run(shuffled)


def test_a_script_decides_per_request_and_a_list_in_order() -> None:
    def script(request: StubRequest) -> Behaviour:
        return Behaviour(text=f"{request.agent} {request.nth_of_agent} {len(request.messages)}")

    with StubProvider(script) as provider:
        texts = [post(provider, user=agent).json()["choices"][0]["message"]["content"] for agent in "aba"]
    assert texts == ["a 0 1", "b 0 1", "a 1 1"]
    with StubProvider([Behaviour("error"), FAST]) as provider:
        assert [post(provider).status_code for _ in range(3)] == [500, 200, 200]


def test_a_script_that_fails_is_reported_when_the_provider_stops() -> None:
    def script(request: StubRequest) -> Behaviour:
        raise ZeroDivisionError("script")

    provider = StubProvider(script).start()
    assert post(provider).status_code == 500
    with pytest.raises(SimulationError) as caught:
        provider.stop()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("behaviour", "status", "outcome", "kind"),
    [
        (Behaviour("rate", retry_after_s=2), 429, "rate", "rate"),
        (Behaviour("quota"), 429, "quota", "quota"),
        (Behaviour("auth"), 401, "auth", "auth"),
        (Behaviour("error"), 500, "error", "server"),
        (Behaviour("overloaded", retry_after_s=2), 503, "overloaded", "overloaded"),
    ],
)
def test_refusals_are_read_for_what_they_are(
    behaviour: Behaviour, status: int, outcome: str, kind: str
) -> None:
    with StubProvider(behaviour) as provider:
        for stream in (False, True):
            reply = post(provider, stream=stream)
            assert reply.status_code == status
            with pytest.raises(httpx.HTTPStatusError) as caught:
                reply.raise_for_status()
            error = read_error(caught.value)
            assert error is not None
            assert error.kind == kind
            assert error.retry_after_s == behaviour.retry_after_s
        assert [record.outcome for record in ended(provider, 2)] == [outcome] * 2
        assert provider.open_requests == 0


def test_the_key_is_checked_where_one_is_set() -> None:
    with StubProvider(FAST, api_key="right") as provider:
        assert post(provider, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert post(provider, headers={"Authorization": "Bearer right"}).status_code == 200


CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "function": {"name": "f"}}, {"id": "c2", "function": {"name": "f"}}],
}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "ok"}


@pytest.mark.parametrize(
    ("messages", "right"),
    [
        ([USER], True),
        ([USER, CALL, result("c1"), result("c2")], True),
        ([USER, CALL, result("c2"), result("c1"), USER], True),
        ([USER, CALL, result("c1")], False),
        ([USER, CALL, result("c1"), USER, result("c2")], False),
        ([USER, CALL, result("c1"), result("c2"), result("c2")], False),
        ([USER, result("c1")], False),
        ([USER, result("c1"), CALL, result("c1"), result("c2")], False),
        ([USER, CALL, result("c1"), result("c2"), CALL, result("c1"), result("c2")], False),
        ([USER, CALL, CALL, result("c1"), result("c2")], False),
    ],
)
def test_strict_pairs(messages: list[dict[str, Any]], right: bool) -> None:
    assert (pair_fault(messages) is None) is right
    with StubProvider(FAST, strict_pairs=True) as strict, StubProvider(FAST) as lenient:
        assert post(strict, messages=messages).status_code == (200 if right else 400)
        assert post(lenient, messages=messages).status_code == 200
        assert ended(strict, 1)[0].outcome == ("answered" if right else "invalid")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"model": 1}', b'{"model": "m", "messages": []}'])
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    with StubProvider(FAST) as provider:
        assert httpx.post(f"{provider.base_url}/chat/completions", content=raw).status_code == 400


def test_a_hung_request_is_silent_until_the_client_goes_away() -> None:
    with StubProvider(Behaviour("hang")) as provider:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{provider.base_url}/chat/completions", json=body(), timeout=0.05)
        (record,) = ended(provider, 1)
        assert (record.outcome, record.status, record.bytes_sent) == ("hung", None, 0)
        assert record.client_closed_s is not None
        assert provider.open_requests == 0


def test_a_stalled_stream_stops_after_its_chunks() -> None:
    with StubProvider(Behaviour("stall", after=3)) as provider:
        with streamed(provider) as reply:
            lines = reply.iter_lines()
            heard = [next(lines) for _ in range(6)]
            assert provider.open_requests == 1
        assert len([line for line in heard if line]) == 3
        (record,) = ended(provider, 1)
    assert (record.outcome, record.chunks_sent, record.output_tokens) == ("stalled", 3, 3)
    assert record.client_closed_s is not None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(set(get_args(Kind)) - {"hang", "stall"}))
async def test_whoever_has_read_an_answer_finds_its_record(kind: Kind, stream: bool) -> None:
    provider = StubProvider(Behaviour(kind))
    app, ends = provider._make_app(), []
    question = {"type": "http.request", "body": json.dumps(body(stream=stream)).encode()}
    messages = [question]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message["more_body"]:
            ends.append([record.outcome for record in provider.log])

    app.abort = lambda _client: ends.append([record.outcome for record in provider.log])
    scope = {"method": "POST", "path": "/v1/chat/completions", "headers": [], "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    assert ends == [[record.outcome for record in provider.log]]
    assert len(provider.log) == 1


@pytest.mark.parametrize("after", [0, 2])
def test_a_dropped_connection(after: int) -> None:
    with StubProvider(Behaviour("drop", after=after)) as provider:
        for stream in (False, True):
            with pytest.raises(httpx.RemoteProtocolError) as caught:
                post(provider, stream=stream)
            error = read_error(caught.value)
            assert error is not None
            assert (error.kind, error.retryable) == ("connection", True)
        assert [record.outcome for record in ended(provider, 2)] == ["dropped"] * 2
        assert [record.client_closed_s for record in provider.log] == [None, None]


def test_a_malformed_reply_is_not_json() -> None:
    with StubProvider(Behaviour("malformed")) as provider:
        reply = post(provider)
        assert reply.status_code == 200
        with pytest.raises(ValueError, match=r"."):
            reply.json()


def test_a_client_that_drops_a_stream_stops_the_generation() -> None:
    with StubProvider(Behaviour(output_tokens=100_000, gap_s=0.001)) as provider:
        with streamed(provider) as reply:
            next(reply.iter_lines())
        (record,) = ended(provider, 1)
        assert record.outcome == "abandoned"
        assert record.client_closed_s is not None
        assert 1 <= record.chunks_sent < 100_000
        assert provider.open_requests == 0


def test_slots_work_on_some_while_others_wait_in_order() -> None:
    async def run(provider: StubProvider) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            url, tasks = f"{provider.base_url}/chat/completions", []
            for number in range(6):
                tasks.append(asyncio.create_task(client.post(url, json=body())))
                await asyncio.to_thread(
                    provider.wait_until, lambda now, want=number + 1: now.open_requests >= want
                )
            for number, task in enumerate([tasks[5], *tasks[:5]]):
                task.cancel()
                await asyncio.to_thread(provider.wait_until, lambda now, want=number + 1: now.ended >= want)
            await asyncio.gather(*tasks, return_exceptions=True)

    with StubProvider(Behaviour("hang"), slots=2) as provider:
        asyncio.run(run(provider))
        records = ended(provider, 6)
    assert provider.peak_concurrency == 6
    assert [record.outcome for record in records] == ["hung"] * 5 + ["abandoned"]
    assert records[5].taken_up_s is None
    for earlier, later in zip(records[:3], records[2:5], strict=True):
        assert earlier.client_closed_s is not None
        assert later.taken_up_s is not None
        assert later.taken_up_s >= earlier.client_closed_s


def test_concurrency_is_known_at_each_instant() -> None:
    async def run(provider: StubProvider) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            url = f"{provider.base_url}/chat/completions"
            tasks = [asyncio.create_task(client.post(url, json=body())) for _ in range(5)]
            await asyncio.to_thread(provider.wait_until, lambda now: now.open_requests == 5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with StubProvider(Behaviour("hang")) as provider:
        asyncio.run(run(provider))
        ended(provider, 5)
        steps = [count for _, count in provider.concurrency]
    assert steps == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]
    assert provider.peak_concurrency == 5
    times = [at for at, _ in provider.concurrency]
    assert times == sorted(times)


def test_stopping_ends_what_hangs_and_cuts_the_connections() -> None:
    provider = StubProvider(Behaviour("hang")).start()
    raised: list[Exception] = []

    def ask() -> None:
        try:
            post(provider)
        except httpx.TransportError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert provider.wait_until(lambda now: now.open_requests == 1)
    provider.stop()
    asking.join(10)
    assert len(raised) == 1
    assert [record.outcome for record in provider.log] == ["stopped"]


def test_a_provider_starts_once_and_stops_what_was_started() -> None:
    provider = StubProvider()
    with pytest.raises(SimulationError):
        provider.stop()
    with pytest.raises(SimulationError):
        _ = provider.base_url
    with provider, pytest.raises(SimulationError):
        provider.start()


@pytest.mark.parametrize(
    "wrong", [{"service_s": -1}, {"output_tokens": -1}, {"tokens_per_chunk": 0}, {"after": -1}]
)
def test_a_behaviour_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="negative"):
        Behaviour(**wrong)


def test_five_hundred_streams_at_once() -> None:
    request = json.dumps(body(stream=True)).encode()

    async def run(provider: StubProvider) -> list[bytes]:
        async def one() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(provider.base_url).port)
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: stub\r\ncontent-length: {len(request)}\r\n\r\n"
            )
            writer.write(head.encode() + request)
            for _ in range(3):
                frame = await reader.readuntil(b"\n\n")
            await everyone.wait()
            writer.close()
            return frame

        everyone = asyncio.Event()
        tasks = [asyncio.create_task(one()) for _ in range(500)]
        await asyncio.to_thread(provider.wait_until, lambda now: now.open_requests == 500, 60)
        everyone.set()
        return await asyncio.gather(*tasks)

    with StubProvider(Behaviour("stall", after=3)) as provider:
        frames = asyncio.run(run(provider))
        records = ended(provider, 500)
        assert provider.peak_concurrency == 500
        assert provider.open_requests == 0
    assert all(b"chat.completion.chunk" in frame for frame in frames)
    assert {(record.outcome, record.chunks_sent) for record in records} == {("stalled", 3)}
