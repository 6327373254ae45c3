"""Engines that break every rule: each call gets an answer in OpenAI's form, and nothing of it stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrm.gateway import Gateway
from agentrm.gateway.connections import Connections, _Connection
from tests.gateway.engines import Engine, ask, client, gateway, nothing_left

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


class Bytes:
    """An engine that says these very bytes to every call, and is well otherwise."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.port = answer, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
        writer.write(self.answer if head.startswith(b"POST") else reply(b"{}"))
        writer.close()


def reply(data: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(data)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


@asynccontextmanager
async def before(answer: bytes, **settings: Any) -> AsyncIterator[tuple[Gateway, Bytes]]:
    engine = Bytes(answer)
    await engine.start()
    async with gateway(engine, **settings) as made:  # type: ignore[arg-type]
        yield made, engine


def using(**usage: Any) -> bytes:
    return json.dumps({"choices": [], "usage": usage}).encode()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Elsewhere", "304 Not Modified", "101 Switching"])
async def test_an_engine_that_sends_the_call_elsewhere_has_failed(status: str) -> None:
    async with before(reply(b"", "Location: http://127.0.0.1:1/", status=status)) as (made, _):
        got, text = await ask(made)
        assert got == 502 and "gateway.backends.a.url" in json.loads(text)["error"]["message"]
        nothing_left(made)


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n", reply(b"{}", status="99 Odd"), b"HTTP/1.1 100 Continue\r\n\r\n" * 50])
async def test_an_engine_that_speaks_no_http_has_failed(answer: bytes) -> None:
    async with before(answer) as (made, _):
        status, text = await ask(made)
        assert status == 502 and json.loads(text)["error"]["code"] == "engine_failed"
        nothing_left(made)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10**30, "completion_tokens": 1},
        {"prompt_tokens": 10**12, "completion_tokens": 10**12},
        {"prompt_tokens": 10**9, "completion_tokens": 10**9, "prompt_tokens_details": {"cached_tokens": 10**30}},
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 10**9}},
        {"prompt_tokens": -5, "completion_tokens": 1.5, "prompt_tokens_details": [1]},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_that_cannot_be_spoils_neither_the_answer_nor_later_calls(usage: dict[str, Any], stream: bool) -> None:
    data = b"data: " + using(**usage) + b"\n\n" if stream else using(**usage)
    kind = "text/event-stream" if stream else "application/json"
    async with before(reply(data, kind=kind), each={"kv_tokens": 100_000}) as (made, engine):
        assert (await ask(made, stream=stream, program_id="p"))[0] == 200
        engine.answer = reply(using(prompt_tokens=20, completion_tokens=2))
        for program in ("p", "q", "r"):
            assert (await asyncio.wait_for(ask(made, program_id=program), 20))[0] == 200
        nothing_left(made)


async def test_deep_nesting_in_an_answer_is_passed_on() -> None:
    deep = b"[" * 100_000
    async with before(reply(deep)) as (made, engine):
        assert await ask(made) == (200, deep.decode())
        event = b'data: {"usage": {"a": ' + deep + b"\n\n"
        engine.answer = reply(event, kind="text/event-stream")
        assert await ask(made, stream=True) == (200, event.decode())
        nothing_left(made)


LIES: list[tuple[str, dict[str, str | int]]] = [
    ("sglang", {"/metrics": "sglang:num_running_reqs -1\nsglang:token_usage 7\nsglang:max_total_num_tokens -5\n"}),
    ("sglang", {"/metrics": "sglang:num_running_reqs 1\nsglang:max_total_num_tokens 1e300\n"}),
    ("sglang", {"/metrics": 404, "/server_info": '{"max_total_num_tokens": true}'}),
    ("sglang", {"/metrics": 404, "/server_info": '{"max_total_num_tokens": ' + "9" * 400 + "}"}),
    ("sglang", {"/metrics": 404, "/server_info": "[" * 100_000}),
    ("llamacpp", {"/slots": '[{"n_ctx": -5}]'}),
    ("llamacpp", {"/slots": '[{"n_ctx": 1e999}]'}),
    ("llamacpp", {"/slots": '[{"n_ctx": 1e300}]'}),
    ("llamacpp", {"/slots": "[" * 100_000}),
    ("vllm", {"/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="%s"} 1\n' % ("9" * 5000)}),
    ("vllm", {"/metrics": 'vllm:kv_cache_usage_perc 1e999\nvllm:num_requests_running 1e300\n'}),
]


@pytest.mark.parametrize("kind,pages", LIES)
async def test_an_engine_that_lies_about_itself_is_used_as_one_that_says_nothing(
    kind: str, pages: dict[str, str | int]
) -> None:
    engine = Engine(pages={"/health": "ok", **pages})
    async with gateway(engine, each={"kind": kind}) as made, client(made) as session:
        assert (await asyncio.wait_for(ask(made, program_id="p"), 20))[0] == 200
        (place,) = made._places.all.values()
        assert place.up and place.capacity is None
        async with session.get("/metrics") as answer:
            assert answer.status == 200 and "e+" not in await answer.text()


@pytest.mark.parametrize("listed", ["[" * 100_000, '{"data": 5}', '{"data": {"a": 1}}', '{"data": [{"id": NaN}]}', "\0"])
async def test_a_list_of_models_that_is_none_lists_none(listed: str) -> None:
    async with gateway(Engine(pages={"/v1/models": listed}), Engine()) as made, client(made) as session:
        async with session.get("/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["m"]


async def test_an_engine_that_never_stops_to_speak_of_itself_is_down_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrm.gateway.upstream._MOST_BYTES", 1000)
    engine = Engine(pages={"/v1/models": "x" * 2000})
    async with gateway(engine) as made, client(made) as session:
        async with session.get("/ready") as answer:
            assert answer.status == 503


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: %s\r\n\r\n"


@pytest.mark.parametrize("around", [b"3;x=%s\r\n{ }\r\n0\r\n\r\n", b"3\r\n{ }\r\n0\r\nX: %s\r\n\r\n"])
async def test_what_is_endless_between_and_behind_the_parts_of_an_answer_breaks_it_off(around: bytes) -> None:
    async with before(CHUNKED % b"application/json" + around % b"short") as (made, engine):
        assert await ask(made) == (200, "{ }")
        engine.answer = CHUNKED % b"application/json" + around % (b"x" * 2_000_000)
        status, text = await ask(made)
        assert status == 502 and "bytes" in json.loads(text)["error"]["message"]
        nothing_left(made)


async def test_a_connection_that_is_closed_as_soon_as_it_is_made_is_no_fault_of_the_gateways() -> None:


    lost = asyncio.Event()

    async def closes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with await asyncio.start_server(closes, "127.0.0.1", 0) as server:
        loop, port = asyncio.get_running_loop(), server.sockets[0].getsockname()[1]
        made = lambda: _Connection(lambda _: None, lambda _: lost.set())  # noqa: E731
        _, connection = await loop.create_connection(made, "127.0.0.1", port)
        await lost.wait()
        with pytest.raises(ConnectionResetError, match="before the call was sent"):
            await connection.send(b"POST / HTTP/1.1\r\n\r\n")


async def test_a_connection_that_answered_before_it_had_the_whole_call_carries_no_other() -> None:
    """What it has not read yet could be taken for a call that somebody wrote into the body of his."""

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await asyncio.get_running_loop().create_future()

    used: list[int] = []
    async with await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1024) as server:
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 5.0)
        for _ in range(2):
            answer = await connections.post("/v1/x", b"x" * 30_000_000, {})
            assert await answer.pass_on(lambda data: True)
        assert len(used) == 2
        connections.close()
