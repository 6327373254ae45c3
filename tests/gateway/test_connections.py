"""What the connections to an engine make of what it sends, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agentrm.gateway import connections
from agentrm.gateway.connections import Answer, ConnectFailed, Connections

Talk = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def asked(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def says(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def left(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def engine(talk: Talk) -> AsyncIterator[tuple[Connections, list[Peer]]]:
    peers: list[Peer] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        try:
            await talk(peers[-1])
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    made = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 5.0)
    try:
        yield made, peers
    finally:
        made.close()
        server.close()


async def post(made: Connections) -> Answer:
    return await made.post("/v1/completions", b"{}", {"X-Name": "value"})


async def whole(answer: Answer) -> bytes:
    got = bytearray()

    def sink(data: bytes) -> bool:
        got.extend(data)
        return True

    assert await answer.pass_on(sink)
    return bytes(got)


def once(*pieces: bytes) -> Talk:
    async def talk(peer: Peer) -> None:
        await peer.asked()
        await peer.says(*pieces)

    return talk


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ((OK + b"Content-Length: 4\r\n\r\ntext",), b"text"),
        ((OK + b"Content-Length: 0\r\n\r\n",), b""),
        (tuple(bytes([one]) for one in OK + b"Content-Length: 4\r\n\r\ntext"), b"text"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nte\r\n2\r\nxt\r\n0\r\n\r\n",), b"text"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n4\r", b"\nte", b"xt\r\n", b"0\r\nX-Late: yes\r\n\r\n"), b"text"),
        ((OK + b"\r\nte", b"xt"), b"text"),  # as long as the connection
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 4\r\n\r\ntext"), b"text"),
    ],
)
async def test_a_body_arrives_however_it_is_framed(pieces: tuple[bytes, ...], body: bytes) -> None:
    async with engine(once(*pieces)) as (made, _):
        answer = await post(made)
        assert (answer.status, answer.content_type) == (200, "text/plain")
        assert await whole(answer) == body
        assert answer.complete and "X-Late" not in answer.headers


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (OK,),
        (b"SMTP ready\r\n",),
        (OK + b"X-Long: " + b"a" * connections.MOST_HEAD_BYTES,),
    ],
)
async def test_what_is_no_answer_is_an_error_of_the_engine(pieces: tuple[bytes, ...]) -> None:
    async with engine(once(*pieces)) as (made, _):
        with pytest.raises(OSError):
            await post(made)


@pytest.mark.parametrize("piece", [b"Content-Length: 40\r\n\r\ntext", b"Transfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n"])
async def test_a_body_that_ends_early_is_an_error_after_what_came(piece: bytes) -> None:
    got: list[bytes] = []
    async with engine(once(OK + piece)) as (made, _):
        answer = await post(made)
        with pytest.raises(OSError):
            await answer.pass_on(lambda data: got.append(data) is None)
    assert b"".join(got) == b"text" and not answer.complete


async def test_no_connection_is_told_apart_from_one_that_broke() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectFailed):
        await post(Connections(f"http://127.0.0.1:{port}", 5.0))


async def test_a_connection_carries_one_call_after_the_other() -> None:
    async def talk(peer: Peer) -> None:
        while True:
            assert (await peer.asked()).startswith(b"POST /v1/completions HTTP/1.1\r\n")
            await peer.says(OK + b"Content-Length: 4\r\n\r\ntext")

    async with engine(talk) as (made, peers):
        for _ in range(3):
            assert await whole(await post(made)) == b"text"
        assert len(peers) == 1
        answers = await asyncio.gather(post(made), post(made))
        assert [await whole(answer) for answer in answers] == [b"text", b"text"]
        assert len(peers) == 2


@pytest.mark.parametrize(
    "answer", [OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", OK + b"Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n"]
)
async def test_a_connection_is_not_used_again_after_that(answer: bytes) -> None:
    """Closed by the engine, or with bytes of an answer that nobody has asked for."""

    async def talk(peer: Peer) -> None:
        await peer.asked()
        await peer.says(answer)
        await peer.left()

    async with engine(talk) as (made, peers):
        for _ in range(2):
            try:
                await whole(await post(made))
            except OSError:
                pass
        assert len(peers) == 2


async def test_a_connection_that_waited_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(peer: Peer) -> None:
        await peer.asked()
        await peer.says(OK + b"Content-Length: 0\r\n\r\n")
        await peer.left()

    async with engine(talk) as (made, peers):
        await whole(await post(made))
        monkeypatch.setattr(connections, "KEPT_S", -1.0)
        await whole(await post(made))
        assert len(peers) == 2


@pytest.mark.parametrize("begun", [True, False])
async def test_who_leaves_closes_the_connection(begun: bool) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.asked()
        if begun:
            await peer.says(OK + b"Content-Length: 40\r\n\r\ntext")
        asked.set()
        if await peer.left():
            gone.set()

    async with engine(talk) as (made, _):
        call = asyncio.ensure_future(post(made))
        await asked.wait()
        if begun:
            (await call).close()
        else:
            call.cancel()
            await asyncio.wait({call})
        await gone.wait()


async def test_an_engine_waits_for_a_reader_that_has_enough() -> None:
    pieces, sent = 400, 0
    done = asyncio.Event()

    async def talk(peer: Peer) -> None:
        nonlocal sent
        await peer.asked()
        await peer.says(OK + b"Content-Length: %d\r\n\r\n" % (pieces << 16))
        peer.writer.transport.set_write_buffer_limits(0)
        for _ in range(pieces):
            peer.writer.write(b"x" * (1 << 16))
            await peer.writer.drain()
            sent += 1
        done.set()

    async with engine(talk) as (made, _):
        answer = await post(made)
        got = 0

        def sink(data: bytes) -> bool:
            nonlocal got
            got += len(data)
            return False

        assert not await answer.pass_on(sink)
        before = got
        for _ in range(200):
            await asyncio.sleep(0)
        assert got == before and not done.is_set()
        while not await answer.pass_on(sink):
            pass
        assert got == pieces << 16 and answer.complete


async def test_what_the_reader_raises_comes_out_where_it_waits() -> None:
    def sink(data: bytes) -> bool:
        raise KeyError("mine")

    async with engine(once(OK + b"Content-Length: 4\r\n\r\n", b"text")) as (made, _):
        with pytest.raises(KeyError, match="mine"):
            await (await post(made)).pass_on(sink)


async def test_a_header_cannot_smuggle_another() -> None:
    async with engine(once(b"")) as (made, peers):
        with pytest.raises(ValueError, match="end of a line"):
            await made.post("/v1/completions", b"{}", {"X-Name": "value\r\nX-Other: value"})
        assert not peers
