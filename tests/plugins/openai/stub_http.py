"""The conformance suite's provider behind a real client of OpenAI: its answers as HTTP, in one process."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
from openai import VERSION

from agentrm.adapters.conformance import Provider
from agentrm.adapters.conformance.provider import Refusal

httpx: Any = importlib.import_module("httpx2" if int(VERSION.partition(".")[0]) >= 3 else "httpx")
"""The library that the installed client of OpenAI is made with."""


def _asks_for_a_stream(request: httpx.Request) -> bool:
    return bool(json.loads(request.content).get("stream"))


def _usage(usage: tuple[int, int] | None) -> Any:
    return usage and {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def _whole(text: str, usage: tuple[int, int] | None) -> httpx.Response:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
    return httpx.Response(200, json={**answer, "usage": _usage(usage)})


def _event(text: str, usage: tuple[int, int] | None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [choice]}
    return f"data: {json.dumps({**event, 'usage': _usage(usage)})}\n\n".encode()


def _refused(refusal: Refusal) -> httpx.Response:
    return httpx.Response(refusal.status_code, headers=refusal.response.headers, json=refusal.body)


class _SyncStream(httpx.SyncByteStream):
    def __init__(self, first: Any, chunks: Iterator[Any]) -> None:
        self.first, self.chunks = first, chunks

    def __iter__(self) -> Iterator[bytes]:
        yield _event(*self.first)
        for chunk in self.chunks:
            yield _event(*chunk)
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        self.chunks.close()  # type: ignore[attr-defined]


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, first: Any, chunks: AsyncIterator[Any]) -> None:
        self.first, self.chunks = first, chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield _event(*self.first)
        async for chunk in self.chunks:
            yield _event(*chunk)
        yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        await self.chunks.aclose()  # type: ignore[attr-defined]


class StubTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            if not _asks_for_a_stream(request):
                reply = self.provider.call()
                return _whole(reply.text, reply.usage)
            chunks = self.provider.stream()
            return httpx.Response(
                200, headers={"content-type": "text/event-stream"}, stream=_SyncStream(next(chunks), chunks)
            )
        except Refusal as refusal:
            return _refused(refusal)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            if not _asks_for_a_stream(request):
                reply = await self.provider.acall()
                return _whole(reply.text, reply.usage)
            chunks = self.provider.astream()
            return httpx.Response(
                200, headers={"content-type": "text/event-stream"}, stream=_AsyncStream(await anext(chunks), chunks)
            )
        except Refusal as refusal:
            return _refused(refusal)
