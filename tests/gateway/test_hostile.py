"""Clients, configurations and signals that break every rule: each gets a clear answer, and nothing of it stays."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import sys
from asyncio.subprocess import PIPE
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentrm import ConfigError
from agentrm.config import load
from agentrm.gateway import Gateway
from tests.gateway.engines import DONE, Call, Engine, ask, body, gateway, nothing_left, said

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
COMPLETIONS = "/v1/chat/completions"


async def raw(made: Gateway, data: bytes, *headers: str, method: str = "POST", path: str = COMPLETIONS) -> tuple[int, Any]:
    """Sends these very bytes; the status and what was answered, which has to be JSON or a stream."""
    host, port = made.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", "Connection: close", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
    answer = await reader.read()
    writer.close()
    head, _, text = answer.partition(b"\r\n\r\n")
    streamed = b"text/event-stream" in head
    return int(head.split()[1]), text if streamed else json.loads(text)


def words(**more: Any) -> bytes:
    return json.dumps(body(**more)).encode()


# --- clients ---


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
async def test_numbers_that_json_does_not_have_are_refused_and_never_sent_on(number: str) -> None:
    async with gateway(engine := Engine()) as made:
        status, answer = await raw(made, words(temperature=0.5).replace(b"0.5", number.encode()))
        assert status == 400 and answer["error"]["code"] == "invalid_json"
        assert not engine.calls
        nothing_left(made)


async def test_nesting_of_any_depth_is_passed_on_or_refused() -> None:
    def list_of(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    def map_of(depth: int) -> bytes:
        return b'{"a":' * depth + b"1" + b"}" * depth

    async with gateway(Engine()) as made:
        for depth in (10, 300, *range(900, 1010, 7), 100_000):
            for nested in (list_of(depth), map_of(depth)):
                for data in (
                    b'{"messages":' + nested + b"}",
                    b'{"other":' + nested + b"}",
                    b'{"messages":[{"role":"system","content":' + nested + b"}]}",
                ):
                    status, answer = await raw(made, data)
                    assert status == 200 or (status == 400 and answer["error"]["code"] == "invalid_json"), depth
            assert (await raw(made, b'{"program_id":' + list_of(depth) + b"}", path="/programs/release"))[0] == 400
        nothing_left(made)


FIELDS = ["model", "messages", "stream", "stream_options", "extra_body", "program_id", "user", "max_tokens", "tools", "input"]
VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, "", "x" * 600, "\ud800", "a\nb\0", [], [1], [None], [[]], {}, {"a": 1},
    [{"role": 1, "content": {}}], [{"role": ["system"]}],
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
async def test_any_value_in_any_field_is_passed_on_or_refused(field: str) -> None:
    async with gateway(Engine(), Engine(), each={"kind": "llamacpp"}) as made:
        for value in VALUES:
            status, answer = await raw(made, words(**{field: value}))
            assert status == 200 or (status in (400, 404) and answer["error"]["message"]), value
        nothing_left(made)


@pytest.mark.parametrize("header", ["Authorization: Bearer \xff", "Api-Key: \xff", "Authorization: \xff \xff"])
async def test_a_key_of_any_bytes_is_looked_up(header: str) -> None:
    keys = {"a": {"sha256": sha256(b"good").hexdigest()}, "b": {"sha256": sha256(b"\xfe").hexdigest()}}
    async with gateway(Engine(), keys=keys) as made:
        status, answer = await raw(made, words(), header)
        assert status == 401 and answer["error"]["code"] in ("invalid_api_key", "missing_api_key")
        assert (await raw(made, words(), "Authorization: Bearer \xfe"))[0] == 200


async def test_a_body_that_does_not_decode_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(Engine()) as made:
        status, answer = await raw(made, words(), "Content-Encoding: gzip")
        assert status == 400 and "decode" in answer["error"]["message"]
        assert (await raw(made, gzip.compress(words()), "Content-Encoding: gzip"))[0] == 200
        nothing_left(made)
    assert all(one.exc_info is None for one in caplog.records), "a line will do for what a client sends"


async def test_a_small_body_that_unpacks_to_a_huge_one_is_too_large() -> None:
    bomb = gzip.compress(b"[" * 3_000_000)
    async with gateway(Engine(), max_request_bytes=100_000) as made:
        status, answer = await raw(made, bomb, "Content-Encoding: gzip")
        assert status == 413 and "gateway.max_request_bytes" in answer["error"]["message"]


@pytest.mark.parametrize("line", ["OPTIONS * HTTP/1.1", "CONNECT a:1 HTTP/1.1"])
async def test_what_has_no_path_is_refused_in_the_form_of_openais_errors(line: str) -> None:
    async with gateway(Engine()) as made:
        method, path, _ = line.split()
        status, answer = await raw(made, b"", method=method, path=path)
        assert status == 404 and answer["error"]["code"] == "not_served"


async def test_a_client_that_asks_first_is_told_to_go_on_or_that_it_expects_too_much() -> None:
    async with gateway(engine := Engine()) as made:
        status, answer = await raw(made, words(), "Expect: miracles")
        assert (status, answer["error"]["code"]) == (417, "expectation_failed") and not engine.calls
        host, port = made.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(words())}\r\n\r\n"
        writer.write(head.encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(words())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(
    "method,path,status",
    [("GET", "/", 404), ("POST", "/v1/embeddings", 404), ("GET", COMPLETIONS, 405), ("DELETE", "/programs", 405)],
)
async def test_what_is_not_served_is_said_in_the_form_of_openais_errors(method: str, path: str, status: int) -> None:
    async with gateway(Engine()) as made:
        got, answer = await raw(made, b"", method=method, path=path)
        assert got == status and answer["error"]["type"] == "invalid_request_error"
        assert ("POST" if path == COMPLETIONS else path) in answer["error"]["message"]


async def test_a_fault_of_the_gateways_own_is_told_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(Engine()) as made:

        def fails(*_: object) -> None:
            raise RuntimeError("a secret of the machine")

        monkeypatch.setattr(made._desk, "admit", fails)
        status, answer = await raw(made, words())
        assert status == 500 and answer["error"]["code"] == "internal" and "secret" not in str(answer)
        assert "a secret of the machine" in caplog.text


async def test_a_fault_behind_an_answer_that_has_begun_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begins(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), said(" words"), DONE)

    async with gateway(Engine(begins)) as made:

        def fails(*_: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(made._desk.groups[0], "progress", fails)
        monkeypatch.setattr(made._relay, "_first", lambda turn: None)
        status, text = await ask(made, stream=True)
        assert "internal" in text and status in (200, 500)
        nothing_left(made)


# --- configurations ---


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://user:word@127.0.0.1", "http://127.0.0.1/v1?key=1",
        "http://127.0.0.1/#a", "http://[::1", "http://a b", "http://a/b c", "http://", "ftp://a", "http://a/\u2028",
        "http://" + "a" * 64 + ".example",
    ],
)  # fmt: skip
def test_an_address_that_no_engine_can_have_is_refused_by_its_key(url: str) -> None:
    with pytest.raises(ConfigError, match="gateway.backends.a.url"):
        load({"gateway": {"backends": {"a": {"url": url}}}})


def test_names_and_keys_that_can_stand_in_no_header_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="gateway.backends"):
        load({"gateway": {"backends": {"a\nb": {"url": "http://a"}}}})
    monkeypatch.setenv("ENGINE_KEY", "hidden\r\nwords")
    config = load({"gateway": {"port": 0, "backends": {"a": {"url": "http://a", "api_key_env": "ENGINE_KEY"}}}})
    with pytest.raises(ConfigError, match="api_key_env") as refused:
        asyncio.run(Gateway(config).start())
    assert "hidden" not in str(refused.value)


# --- the process ---


async def test_the_second_signal_ends_the_process_there_and_then() -> None:
    async def hangs(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=asyncio.Event())

    engine = await Engine(hangs).start()
    line = [sys.executable, "-m", "agentrm", "serve", "--port", "0", "--backend", engine.url]
    served = await asyncio.create_subprocess_exec(*line, stdout=PIPE, stderr=PIPE)
    assert served.stdout is not None and served.stderr is not None
    url = (await served.stdout.readline()).decode().split()[-1]
    async with aiohttp.ClientSession() as session:
        asked = asyncio.ensure_future(session.post(url + "/chat/completions", json=body(True)))
        await engine.arrived.wait()
        await asked
        served.send_signal(signal.SIGINT)
        while b"draining" not in (line_of := await served.stderr.readline()):
            assert line_of, "it ended at the first signal"
        served.send_signal(signal.SIGINT)
        assert await served.wait() == -signal.SIGINT
        assert not (await served.stderr.read()).strip()
    await engine.kill()
