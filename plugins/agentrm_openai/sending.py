"""One request, one lease: from before it is sent to the end of its answer, or of the stream that it is.

A plain answer is read whole under the lease; of a stream the lease holds until its last event, its close or its drop,
and its first bytes are waited for before the response is handed out, so that a silent provider is tried again on a
fresh connection. A refusal that can pass is tried again here, with nothing held meanwhile; the last one is handed out
as the response that it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from agentrm.adapters import CallSpec, Usage, acall, astream, call, stream
from agentrm.adapters.copies import Gate
from agentrm_openai.wire import Asked, Frames, answer_size, answer_usage, read_request

__all__ = ["asend", "send"]

Translate = Callable[[Any], Any]


class Refused(Exception):
    """The provider answered with an error. Never leaves this module."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the provider answered {response.status_code}")
        self.response, self.status_code = response, response.status_code
        try:
            self.body = response.json()
        except ValueError:
            self.body = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a stream, and what they say. The first one has the response."""

    data: bytes
    size: int
    usage: Usage | None
    is_last: bool
    response: Any = None


def send(gate: Gate, request: Any, go: Callable[[], Any], translate: Translate | None = None) -> Any:
    """The response of `go()`, which sends the request and leaves the body unread. `translate` as in CallSpec."""
    asked = read_request(request)
    if asked is None:
        return go()
    try:
        if not asked.streams:
            return call(gate.rm, _spec(gate, asked, translate), lambda: _whole(go()))
        request.headers["accept-encoding"] = "identity"  # what passes by is read
        pieces = stream(gate.rm, _stream_spec(gate, asked, translate), lambda: _pieces(go))
        first = next(pieces)
    except Refused as refused:
        return refused.response
    first.response.stream = _sync_body(_library(first.response))(first, pieces)
    return first.response


async def asend(
    gate: Gate, request: Any, go: Callable[[], Awaitable[Any]], translate: Translate | None = None
) -> Any:
    """The same on an event loop."""
    asked = read_request(request)
    if asked is None:
        return await go()

    async def whole() -> Any:
        return await _awhole(await go())

    try:
        if not asked.streams:
            return await acall(gate.rm, _spec(gate, asked, translate), whole)
        request.headers["accept-encoding"] = "identity"
        pieces = astream(gate.rm, _stream_spec(gate, asked, translate), lambda: _apieces(go))
        first = await anext(pieces)
    except Refused as refused:
        return refused.response
    first.response.stream = _async_body(_library(first.response))(first, pieces)
    return first.response


def _spec(gate: Gate, asked: Asked, translate: Translate | None, **more: Any) -> CallSpec:
    readers = {
        "usage": lambda response: answer_usage(_json(response)),
        "size": lambda response: answer_size(_json(response)),
        "headers": lambda response: response.headers,
    }
    return gate.spec(
        kind="model",
        model=asked.model,
        input_tokens=asked.input_tokens,
        max_output_tokens=asked.max_output_tokens,
        translate=translate,
        **{**readers, **more},
    )


def _stream_spec(gate: Gate, asked: Asked, translate: Translate | None) -> CallSpec:
    return _spec(
        gate,
        asked,
        translate,
        usage=lambda piece: piece.usage,
        size=lambda piece: piece.size,
        is_last=lambda piece: piece.is_last,
        headers=lambda piece: None if piece.response is None else piece.response.headers,
    )


def _json(response: Any) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _whole(response: Any) -> Any:
    response.read()
    if response.status_code >= 400:
        raise Refused(response)
    return response


async def _awhole(response: Any) -> Any:
    await response.aread()
    if response.status_code >= 400:
        raise Refused(response)
    return response


def _pieces(go: Callable[[], Any]) -> Iterator[_Piece]:
    response = go()
    if response.status_code >= 400:
        _whole(response)
    body, frames = response.stream, Frames()
    try:
        for data in body:
            yield _piece(frames, data, response)
            response = None  # is handed out
        if response is not None:
            yield _piece(frames, b"", response)
    finally:
        body.close()


async def _apieces(go: Callable[[], Awaitable[Any]]) -> AsyncIterator[_Piece]:
    response = await go()
    if response.status_code >= 400:
        await _awhole(response)
    body, frames = response.stream, Frames()
    try:
        async for data in body:
            yield _piece(frames, data, response)
            response = None
        if response is not None:
            yield _piece(frames, b"", response)
    finally:
        await body.aclose()


def _piece(frames: Frames, data: bytes, response: Any) -> _Piece:
    size, usage = 0, None
    for frame in frames.add(data):
        size += answer_size(frame)
        told = answer_usage(frame)
        usage = told if usage is None else usage if told is None else usage.at_least(told)
    return _Piece(data, size, usage, frames.ended, response)


def _library(response: Any) -> str:
    """httpx or httpx2: the body of a response must be of its own library's class."""
    return type(response).__module__.partition(".")[0]


@cache
def _sync_body(library: str) -> type:
    return type("SyncBody", (_SyncBody, import_module(library).SyncByteStream), {})


@cache
def _async_body(library: str) -> type:
    return type("AsyncBody", (_AsyncBody, import_module(library).AsyncByteStream), {})


class _SyncBody:
    def __init__(self, first: _Piece, pieces: Any) -> None:
        self._first, self._pieces = first, pieces

    def __iter__(self) -> Iterator[bytes]:
        yield self._first.data
        for piece in self._pieces:
            yield piece.data

    def close(self) -> None:
        self._pieces.close()


class _AsyncBody:
    def __init__(self, first: _Piece, pieces: Any) -> None:
        self._first, self._pieces = first, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first.data
        async for piece in self._pieces:
            yield piece.data

    async def aclose(self) -> None:
        await self._pieces.aclose()
