"""Many streams at once, each read as it comes: the time to the first token of each, in seconds.

    python -m benchmarks.gateway.load URL STREAMS RAMP_S SECONDS [KEY CERT]

All connections are made first. Then the users begin one after the other within RAMP_S, which should be as long as an
answer takes, and each asks again as soon as its answer is complete. What counts is what is asked in the SECONDS after
that, while all streams run. Prints the times as JSON. A client of its own, so that its cost is small and the same in
all comparisons.
"""

from __future__ import annotations

import asyncio
import gc
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

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.times: list[float] = []
        self.counts_from = self.until = 0.0
        """Since when answers count and until when it asks, by the loop's clock."""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._first = True
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def ask(self) -> None:
        self._first, self._tail = True, b""
        self._counts = self._loop.time() >= self.counts_from
        self._sent = perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._first and b"data:" in data:
            self._first = False
            if self._counts:
                self.times.append(perf_counter() - self._sent)  # the loop's own clock counts whole milliseconds
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            if self._loop.time() >= self.until:
                self._transport.close()
            else:
                self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            if self._first:
                self.over.set_exception(error or ConnectionError("cut before the answer"))
            else:
                self.over.set_result(None)


async def load(
    url: str, streams: int, ramp_s: float, seconds: float, key: str | None, cert: str | None
) -> list[float]:
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"a URL with a host and a port is needed, not {url!r}")
    more = f"Authorization: Bearer {key}\r\n" if key else ""
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{more}"
        f"Content-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    trusting = ssl.create_default_context(cafile=cert) if cert else None
    readers = []
    for _ in range(streams):
        _, reader = await loop.create_connection(lambda: Reader(request), parts.hostname, parts.port, ssl=trusting)
        readers.append(reader)
    gc.freeze()
    begun = loop.time()
    for reader in readers:
        reader.counts_from, reader.until = begun + ramp_s, begun + ramp_s + seconds
        loop.call_at(begun + random.uniform(0, ramp_s), reader.ask)
    await asyncio.gather(*(reader.over for reader in readers))
    return [taken for reader in readers for taken in reader.times]


if __name__ == "__main__":
    import uvloop

    key, cert = (*sys.argv[5:], "", "")[:2]
    numbers = int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    print(json.dumps(uvloop.run(load(sys.argv[1], *numbers, key or None, cert or None))))
