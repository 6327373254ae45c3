"""An engine that streams at a fixed pace and does nothing else, so that the machine is left to what is measured.

    python -m benchmarks.gateway.engine CHUNKS GAP_S FIRST_S [CERT KEY]
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from typing import cast

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = json.dumps({"object": "list", "data": [{"id": "m"}]}).encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


WORD = chunk(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n')
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":%d}}\n\n'


class Engine(asyncio.Protocol):
    """One connection: one answer after the other."""

    def __init__(self, chunks: int, gap_s: float, first_s: float) -> None:
        self._chunks, self._gap_s, self._first_s = chunks, gap_s, first_s
        self._end = chunk(USAGE % (chunks, chunks + 20)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._loop = asyncio.get_running_loop()
        self._read = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, mark, body = self._read.partition(b"\r\n\r\n")
        if not mark:
            return
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if len(body) < int(length or 0):
            return
        self._read = b""
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MODELS) + MODELS)
        else:
            self._due = self._loop.time() + self._first_s
            self._timer = self._loop.call_at(self._due, self._speak, 0)

    def _speak(self, said: int) -> None:
        self._transport.write((HEAD if not said else b"") + WORD)
        self._due += self._gap_s
        if said + 1 < self._chunks:
            self._timer = self._loop.call_at(self._due, self._speak, said + 1)
        else:
            self._transport.write(self._end)


async def serve(chunks: int, gap_s: float, first_s: float, tls: list[str]) -> None:
    loop = asyncio.get_running_loop()
    secured = None
    if tls:
        secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        secured.load_cert_chain(*tls)
    server = await loop.create_server(
        lambda: Engine(chunks, gap_s, first_s), "127.0.0.1", 0, backlog=2048, ssl=secured
    )
    print(f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # ends with whoever started it


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
