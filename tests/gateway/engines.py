"""Engines for the gateway's tests: real HTTP servers on loopback that do what a test says, and a gateway before them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentrm.config import load
from agentrm.gateway import Gateway

Answer = Callable[["Call"], Awaitable[web.StreamResponse]]


class Call:
    """One request as the engine got it."""

    def __init__(self, request: web.Request, body: Any) -> None:
        self.request, self.body = request, body
        self.headers = dict(request.headers)
        self.left = asyncio.Event()
        """Set when the gateway closed the connection before the answer was complete."""

    async def stream(self, *frames: bytes, hold: asyncio.Event | None = None, status: int = 200) -> web.StreamResponse:
        """Sends the frames; with `hold` the last one once it is set."""
        down = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream"})
        await down.prepare(self.request)
        for frame in frames[:-1] if hold else frames:
            await down.write(frame)
        if hold is not None:
            await hold.wait()
            await down.write(frames[-1])
        await down.write_eof()
        return down

    async def cut(self, *frames: bytes) -> web.StreamResponse:
        """Sends the frames and breaks the connection."""
        if frames:
            down = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await down.prepare(self.request)
            for frame in frames:
                await down.write(frame)
        assert self.request.transport is not None
        self.request.transport.abort()
        raise asyncio.CancelledError


def frame(**body: Any) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", **body}).encode() + b"\n\n"


def said(text: str) -> bytes:
    return frame(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


USAGE = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22, "prompt_tokens_details": {"cached_tokens": 16}}
DONE = b"data: [DONE]\n\n"


def told(usage: Mapping[str, Any] = USAGE) -> bytes:
    return frame(choices=[], usage=usage)


async def plain(call: Call) -> web.StreamResponse:
    """Two words, streamed or not, with usage."""
    if call.body.get("stream"):
        asked = (call.body.get("stream_options") or {}).get("include_usage")
        return await call.stream(said("two"), said(" words"), *([told()] if asked else []), DONE)
    message = {"role": "assistant", "content": "two words"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response({"id": "c1", "object": "chat.completion", "choices": [choice], "usage": USAGE})


class Engine:
    """One engine. `answer` says what happens to each call; `pages` what it shows elsewhere."""

    def __init__(self, answer: Answer = plain, pages: Mapping[str, str | int] | None = None) -> None:
        self.answer, self.pages = answer, dict(pages or {})
        self.calls: list[Call] = []
        self.arrived = asyncio.Event()
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Engine:
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def kill(self) -> None:
        """As a killed process: connections are cut, nothing listens any more. Again it does nothing."""
        if self._runner is None or self._site is None:
            return
        await self._site.stop()
        for connection in list(self._runner.server.connections) if self._runner.server else []:
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" or not request.path.startswith("/v1/"):
            page = self.pages.get(request.path, json.dumps({"object": "list", "data": [{"id": "m"}]}))
            return web.Response(status=page) if isinstance(page, int) else web.Response(text=page)
        call = Call(request, json.loads(await request.read()))  # type: ignore[arg-type]
        self.calls.append(call)
        self.arrived.set()
        try:
            return await self.answer(call)
        except (asyncio.CancelledError, ConnectionError):
            call.left.set()
            raise


@asynccontextmanager
async def gateway(*engines: Engine, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway before engines, which are named a, b, ... Settings are those of the section `gateway`, with
    `rest` for other sections and `each` for all backends."""
    rest, each = settings.pop("rest", {}), settings.pop("each", {})
    for engine in engines:
        if not engine.port:
            await engine.start()
    backends = {name: {"url": engine.url, **each} for name, engine in zip("abcdef", engines, strict=False)}
    section = {"port": 0, "poll_s": 3600, "drain_s": 0, "backends": backends, **settings}
    made = Gateway(load({"gateway": section, **rest}))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        for engine in engines:
            await engine.kill()


@asynccontextmanager
async def client(made: Gateway, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(made.url, headers=headers) as session:
        yield session


def body(stream: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "say two words"}], "stream": stream, **more}


async def ask(made: Gateway, *, headers: Mapping[str, str] | None = None, **more: Any) -> tuple[int, str]:
    """One whole chat completion: status and text."""
    async with aiohttp.ClientSession() as session, session.post(
        made.url + "/v1/chat/completions", json=body(**more), headers=headers
    ) as answer:
        return answer.status, await answer.text()


def nothing_left(made: Gateway) -> None:
    """No call, lease, program turn or waiter is left of all that was."""
    assert made.open_requests == 0
    assert not made.rm.gate.leases and not made.rm.gate.queued
    known = {program for group in made._desk.groups for program in group.scheduler.programs}
    assert set(made._desk._where) <= known
    for group in made._desk.groups:
        statistics = group.scheduler.statistics()
        assert statistics.running == statistics.waiting == 0
        assert not group._waiting


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 with its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"openssl makes no certificate: {made.stderr[-200:]!r}")
    return cert, key
