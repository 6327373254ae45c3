"""The way to the engines: nothing of the client's is passed on that is not meant for the engine, nothing of the
engine's that is not meant for the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
from multidict import CIMultiDict

from agentrm.gateway.connections import Answer, Connections
from agentrm.programs.backends import Reply, TransportError

__all__ = ["Engine", "passed_back", "session"]

_TO_ENGINE = ("traceparent", "tracestate", "x-request-id", "x-session-id", "user-agent", "accept-language")
_TO_CLIENT = ("content-type", "content-encoding", "x-request-id", "retry-after", "retry-after-ms")
_ADMIN_LIMIT_S = 30.0
"""For orders to an engine, such as writing a program's state to a file."""
_MOST_BYTES = 16_000_000
"""Of what an engine says of itself."""


def session(connect_s: float) -> aiohttp.ClientSession:
    """No limit in time or number: both are the business of leases and lanes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=1 << 16,
    )


class Engine:
    """The way to one engine: what the gateway asks for itself (`request`), and the clients' calls (`post`)."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str | None, connect_s: float) -> None:
        root = url.rstrip("/")
        self.root = root[: -len("/v1")] if root.endswith("/v1") else root
        self._session, self._key = session, key
        self._calls = Connections(self.root, connect_s)

    async def request(
        self, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Reply:
        data = None if body is None else json.dumps(body).encode()
        limit = aiohttp.ClientTimeout(total=_ADMIN_LIMIT_S)
        try:
            async with self._session.request(
                method, self.root + path, data=data, headers=self._headers(None), timeout=limit, allow_redirects=False
            ) as answer:
                return Reply(answer.status, await _bounded(answer))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise TransportError(f"{method} {self.root}{path}: {type(error).__name__} {error}".strip()) from error

    async def post(self, path: str, body: bytes, asked: Mapping[str, str] | None) -> Answer:
        """Sends a client's call; returns as its answer begins. `asked`: the client's headers. Raises ConnectFailed, or
        OSError once it was sent."""
        return await self._calls.post(path, body, self._headers(asked))

    def close(self) -> None:
        """Closes the connections that carry no call."""
        self._calls.close()

    def _headers(self, asked: Mapping[str, str] | None) -> dict[str, str]:
        """The client's own key goes on only where the gateway knows none, and `asked` still has it then."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if asked is not None:
            headers.update({name: asked[name] for name in _TO_ENGINE if name in asked})
            if "Authorization" in asked:
                headers["Authorization"] = asked["Authorization"]
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Raises aiohttp.ClientPayloadError for what no engine has to say about itself."""
    parts, size = [], 0
    async for data in answer.content.iter_any():
        size += len(data)
        if size > _MOST_BYTES:
            answer.close()
            raise aiohttp.ClientPayloadError(f"it says more than {_MOST_BYTES} bytes")
        parts.append(data)
    return b"".join(parts)


def passed_back(answer: Answer, backend: str) -> CIMultiDict[str]:
    """The headers of an engine's answer that the client gets, with the name of the backend."""
    found = CIMultiDict((name, answer.headers[name]) for name in _TO_CLIENT if name in answer.headers)
    for name, value in answer.headers.items():
        if name.lower().startswith("x-ratelimit-"):
            found.add(name, value)
    found["X-AgentRM-Backend"] = backend
    return found
