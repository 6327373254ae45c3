"""No client holds a connection of the gateway for nothing: heads, answers and their number are bounded."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrm.gateway import Gateway
from tests.gateway.engines import DONE, Call, Engine, ask, certificate, gateway, nothing_left, said

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(made: Gateway) -> Streams:
    host, port = made.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def answer(streams: Streams, data: bytes) -> tuple[int, Any]:
    """One whole answer on a connection that stays open."""
    reader, writer = streams
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with gateway(Engine(), head_s=0.05) as made:
        reader, writer = await connect(made)
        writer.write(sent)
        told = await reader.read()
        writer.close()
        if sent:
            assert told.startswith(b"HTTP/1.1 408 ") and b"gateway.head_s" in told
        else:
            assert told == b""
        assert (await ask(made))[0] == 200


async def test_only_the_head_that_has_begun_is_owed_between_two_requests() -> None:
    async with gateway(Engine(), head_s=0.05) as made:
        kept = await connect(made)
        assert await answer(kept, HEALTH) == (200, {"status": "ok"})
        silent, _ = await connect(made)
        assert await silent.read() == b"", "it came later and is closed: the time of the first would be over, too"
        assert await answer(kept, HEALTH) == (200, {"status": "ok"})
        kept[1].write(HEALTH[:20])
        assert (await kept[0].read()).startswith(b"HTTP/1.1 408 ")


async def test_a_call_takes_longer_than_a_head_may() -> None:
    go = asyncio.Event()

    async def held(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=go)

    async with gateway(Engine(held), head_s=0.05) as made:
        call = asyncio.ensure_future(ask(made, stream=True))
        silent, _ = await connect(made)
        await silent.read()
        go.set()
        status, text = await call
        assert status == 200 and "[DONE]" in text


async def test_a_client_that_never_takes_its_answer_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def endless(call: Call) -> web.StreamResponse:
        return await call.stream(*[said("x" * 100_000)] * 1_000, DONE)

    async with gateway(engine := Engine(endless), unread_s=0.05) as made:
        host, port = made.url.removeprefix("http://").split(":")
        mute = socket.create_connection((host, int(port)))
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
        mute.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        await engine.arrived.wait()
        await engine.calls[0].left.wait()
        while made.open_requests:
            await asyncio.sleep(0)
        nothing_left(made)
        mute.close()
    assert "took nothing of its answer" in caplog.text


async def test_one_connection_too_many_is_told_so_and_a_place_that_is_left_is_taken() -> None:
    async with gateway(Engine(), max_connections=2) as made:
        first, second = await connect(made), await connect(made)
        assert await answer(first, HEALTH) == await answer(second, HEALTH) == (200, {"status": "ok"})
        reader, writer = await connect(made)
        writer.write(HEALTH)
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 503 ") and b"gateway.max_connections" in told and b"Retry-After: 1" in told
        writer.close()
        first[1].close()
        await first[1].wait_closed()
        while (await served(made))[0] != 200:
            pass


async def served(made: Gateway) -> tuple[int, Any]:
    streams = await connect(made)
    try:
        return await answer(streams, HEALTH)
    finally:
        streams[1].close()


@pytest.mark.parametrize(
    "sent,status,code",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", 400, "invalid_http"),
        (b"GE(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/9\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "head_too_large"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400, "invalid_http"),
    ],
)
async def test_what_is_no_http_is_answered_as_other_errors_and_logged_in_a_line(
    sent: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(Engine()) as made:
        reader, writer = await connect(made)
        writer.write(sent)
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert int(head.split()[1]) == status and b"application/json" in head
        assert json.loads(text)["error"]["code"] == code
    records = [one for one in caplog.records if one.name.startswith(("agentrm", "aiohttp"))]
    assert len(records) == 1 and records[0].exc_info is None and "\n" not in records[0].getMessage()


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    pytest.importorskip("uvloop").run(work)


@pytest.mark.parametrize("run,collect", [(asyncio.run, gc.collect), (on_uvloop, int)], ids=["asyncio", "uvloop"])
def test_handshakes_count_as_connections_until_they_fail(
    run: Callable[[Coroutine[Any, Any, None]], None], collect: Callable[[], int], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)

    async def go() -> None:
        trusting = ssl.create_default_context(cafile=cert)
        tls = {"cert": str(cert), "key": str(key)}
        async with gateway(Engine(), max_connections=2, tls=tls) as made:
            host, port = made.url.removeprefix("https://").split(":")

            async def served() -> tuple[int, Any]:
                streams = await asyncio.open_connection(host, int(port), ssl=trusting)
                try:
                    return await answer(streams, HEALTH)
                finally:
                    streams[1].close()
                    await streams[1].wait_closed()

            door = next(iter(made._runner.sites))  # type: ignore[union-attr]
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
            while door.open < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            status, told = await served()
            assert (status, told["error"]["code"]) == (503, "too_many_connections")
            silent[0][1].write(b"this is no handshake")
            await silent[0][0].read()
            silent[1][1].close()
            while door.open:  # type: ignore[attr-defined]
                collect()
                await asyncio.sleep(0)
            assert await served() == (200, {"status": "ok"})

    run(go())


@pytest.mark.parametrize("run", [asyncio.run, on_uvloop])
def test_a_handshake_that_does_not_go_on_is_ended(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)

    async def go() -> None:
        async with gateway(Engine(), head_s=0.05, tls={"cert": str(cert), "key": str(key)}) as made:
            host, port = made.url.removeprefix("https://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x16\x03\x01\x02\x00")
            assert await reader.read() == b""
            writer.close()

    run(go())
