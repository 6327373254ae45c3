"""What has come in for one request, and what has gone out for it so far?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from email.utils import formatdate
from typing import Any

from agentrm.simulation.provider_behaviour import Outcome, StubRequest
from agentrm.simulation.provider_limits import Entry
from agentrm.simulation.provider_log import RequestLog, RequestRecord
from agentrm.simulation.provider_wire import prompt_tokens

__all__ = [
    "AGENT_HEADER",
    "Exchange",
    "Receive",
    "Scope",
    "Send",
    "agent_of",
    "header_of",
    "read_body",
    "request_of",
]

AGENT_HEADER = "x-agent-id"
"""The request header that names the agent; without it the body's `user` does."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

Headers = Iterable[tuple[str, str]]


class Exchange:
    """One request and what has been sent for it so far."""

    __slots__ = (
        "_ended", "abort", "bytes_sent", "chunks_sent", "client_closed_s", "concurrency", "entry", "first_chunk_s",
        "log", "now", "outcome_if_left", "output_tokens", "request", "send", "status", "stopped", "taken_in",
        "taken_up_s", "work",
    )  # fmt: skip

    def __init__(
        self,
        request: StubRequest,
        send: Send,
        now: Callable[[], float],
        abort: Callable[[], None],
        log: RequestLog | None,
    ) -> None:
        self.request, self.send, self.now, self.abort, self.log = request, send, now, abort, log
        self.status: int | None = None
        self.taken_up_s: float | None = None
        self.first_chunk_s: float | None = None
        self.client_closed_s: float | None = None
        self.entry: Entry | None = None
        self.work: asyncio.Task[Outcome] | None = None
        self.concurrency = self.chunks_sent = self.bytes_sent = self.output_tokens = 0
        self.outcome_if_left: Outcome = "abandoned"
        self.stopped = self.taken_in = self._ended = False

    async def head(self, status: int, kind: str, headers: Headers = (), length: int | None = None) -> None:
        self.status = status
        lines = [(b"content-type", kind.encode()), (b"date", _date())]
        lines += [(name.encode(), value.encode()) for name, value in headers]
        if length is not None:
            lines.append((b"content-length", str(length).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": lines})

    async def body(self, data: bytes, *, ends: Outcome | None = None) -> None:
        """`ends`: what the answer was, of which this is the last. It is in the log before it goes out: whoever has read
        an answer finds its record."""
        self.bytes_sent += len(data)
        if ends is not None:
            self.end(ends)
        await self.send({"type": "http.response.body", "body": data, "more_body": ends is None})

    async def chunk(self, frame: bytes, tokens: int) -> None:
        if self.first_chunk_s is None:
            self.first_chunk_s = self.now()
        self.chunks_sent += 1
        self.output_tokens += tokens
        await self.body(frame)

    async def json(self, status: int, value: Mapping[str, Any], outcome: Outcome, headers: Headers = ()) -> None:
        data = json.dumps(value).encode()
        await self.head(status, "application/json", headers, len(data))
        await self.body(data, ends=outcome)

    def cut(self) -> Outcome:
        """Ends it by an end of the connection."""
        self.end("dropped")
        self.abort()
        return "dropped"

    def end(self, outcome: Outcome) -> None:
        """Writes it down, the first time."""
        if self._ended:
            return
        self._ended = True
        if self.entry is not None:
            self.entry.tokens = self.request.prompt_tokens + self.output_tokens
        if self.log is not None:
            self.log.ended(self._record(outcome), taken_in=self.taken_in)

    def _record(self, outcome: Outcome) -> RequestRecord:
        request = self.request
        return RequestRecord(
            index=request.index,
            model=request.model,
            agent=request.agent,
            stream=request.stream,
            outcome=outcome,
            status=self.status,
            arrived_s=request.arrived_s,
            taken_up_s=self.taken_up_s,
            first_chunk_s=self.first_chunk_s,
            ended_s=self.now(),
            client_closed_s=self.client_closed_s,
            concurrency=self.concurrency,
            prompt_tokens=request.prompt_tokens,
            output_tokens=self.output_tokens,
            chunks_sent=self.chunks_sent,
            bytes_sent=self.bytes_sent,
        )


async def read_body(receive: Receive) -> bytes | None:
    """The whole body, None if the client went away before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def request_of(scope: Scope, body: Mapping[str, Any], index: int, nth: int, arrived: float) -> StubRequest:
    messages = tuple(body.get("messages") or ())
    tools = [
        tool.get("function", {}).get("name") for tool in body.get("tools") or () if isinstance(tool, dict)
    ]
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    options = body.get("stream_options")
    return StubRequest(
        index=index,
        nth_of_agent=nth,
        arrived_s=arrived,
        model=body.get("model", ""),
        agent=agent_of(scope, body),
        stream=bool(body.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        messages=messages,
        tools=tuple(name for name in tools if isinstance(name, str)),
        max_tokens=most if isinstance(most, int) else None,
        prompt_tokens=prompt_tokens(messages),
        body=body,
    )


def agent_of(scope: Scope, body: Mapping[str, Any]) -> str | None:
    named = header_of(scope, AGENT_HEADER) or body.get("user")
    return named if isinstance(named, str) else None


def header_of(scope: Scope, name: str) -> str | None:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == wanted), None)


def _date() -> bytes:
    return formatdate(usegmt=True).encode()
