"""Many streams at once, each read as it comes: the time to the first token of each, in seconds.

    python -m benchmarks.gateway.load URL STREAMS SECONDS [KEY CERT]

Prints the times as JSON. A client of its own, so that its cost is small and the same in all comparisons.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

BODY = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Say a few words. " * 20}]}
).encode()


class Reader(asyncio.Protocol):
    """One user: asks again as soon as an answer is complete."""

    def __init__(self, request: bytes, times: list[float], until: float) -> None:
        self._request, self._times, self._until = request, times, until
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._first = True
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._ask()

    def _ask(self) -> None:
        self._first, self._tail = True, b""
        self._sent = perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._first and b"data:" in data:
            self._first = False
            self._times.append(perf_counter() - self._sent)  # the loop's own clock counts whole milliseconds
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            if self._loop.time() >= self._until:
                self._transport.close()
            else:
                self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            if self._first:
                self.over.set_exception(error or ConnectionError("cut before the answer"))
            else:
                self.over.set_result(None)


async def load(url: str, streams: int, seconds: float, key: str | None, cert: str | None) -> list[float]:
    loop, parts, times = asyncio.get_running_loop(), urlsplit(url), list[float]()
    more = f"Authorization: Bearer {key}\r\n" if key else ""
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{more}"
        f"Content-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    until = loop.time() + seconds
    trusting = ssl.create_default_context(cafile=cert) if cert else None
    readers = []
    for _ in range(streams):
        _, reader = await loop.create_connection(
            lambda: Reader(request, times, until), parts.hostname, parts.port, ssl=trusting
        )
        readers.append(reader)
        await asyncio.sleep(random.uniform(0, 2 * min(1.0, seconds / 4) / streams))  # not all in step
    await asyncio.gather(*(reader.over for reader in readers))
    return times


if __name__ == "__main__":
    import uvloop

    key, cert = (*sys.argv[4:], "", "")[:2]
    print(json.dumps(uvloop.run(load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), key or None, cert or None))))
