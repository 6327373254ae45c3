"""How does one request go through the stub provider? The ASGI application, without server and threads.

Order of the checks: route, key, form and pairs, limits, behaviour. What passes is in progress until its
answer is complete, the client has gone away or the provider stops. Each answer is written by a task that
is cancelled when the client goes away, so a dropped stream costs nothing from then on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from agentrm.simulation.provider_behaviour import Behaviour, Outcome, StubRequest
from agentrm.simulation.provider_exchange import (
    Exchange,
    Receive,
    Scope,
    Send,
    agent_of,
    header_of,
    read_body,
    request_of,
)
from agentrm.simulation.provider_limits import Entry, Hint, Refusal, Windows, hint_headers
from agentrm.simulation.provider_log import RequestLog
from agentrm.simulation.provider_wire import Reply, error_body, pair_fault, parse

__all__ = ["StubApp"]


class StubApp:
    """The application. All of it runs in one event loop, so its state needs no lock; the log has its own."""

    def __init__(
        self,
        *,
        choose: Callable[[StubRequest], Behaviour],
        log: RequestLog,
        windows: Windows,
        hints: Sequence[Hint],
        seed: int,
        slots: int | None,
        strict_pairs: bool,
        api_key: str | None,
        models: Sequence[str],
        time_scale: float,
    ) -> None:
        self._choose, self._log, self._windows, self._hints = choose, log, windows, tuple(hints)
        self._seed, self._strict_pairs, self._api_key = seed, strict_pairs, api_key
        self._models, self._scale = tuple(models), time_scale
        self._slots = asyncio.Semaphore(slots) if slots is not None else None
        self._of_agent: Counter[str | None] = Counter()
        self._open: set[Exchange] = set()
        self._emptied = asyncio.Event()
        self._stopping = False
        self._started = time.monotonic()
        self.failure: BaseException | None = None
        """What a script raised; the provider raises it again when it stops."""
        self.abort: Callable[[tuple[str, int]], None] = _no_abort
        """Cuts the connection of a client address; set by whoever runs the server."""

    def now(self) -> float:
        """Real seconds since the start."""
        return time.monotonic() - self._started

    async def stop(self) -> None:
        """Cut the connections of what is in progress; returns when its end is recorded."""
        self._stopping = True
        for exchange in self._open:
            if exchange.work is not None:
                exchange.stopped = True
                exchange.abort()
                exchange.work.cancel()
        if self._open:
            await self._emptied.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        if raw is None:
            return
        route = (scope["method"], scope["path"])
        if route == ("POST", "/v1/chat/completions"):
            await self._chat(scope, receive, send, raw)
        elif route == ("GET", "/v1/models"):
            data = [
                {"id": name, "object": "model", "created": 0, "owned_by": "agentrm"} for name in self._models
            ]
            await self._plain(scope, send).json(200, {"object": "list", "data": data}, "answered")
        else:
            text = f"Unknown request URL: {route[0]} {route[1]}"
            refusal = error_body(text, "invalid_request_error", "unknown_url")
            await self._plain(scope, send).json(404, refusal, "invalid")

    def _plain(self, scope: Scope, send: Send) -> Exchange:
        request = request_of(scope, {}, -1, 0, self.now())
        return Exchange(request, send, self.now, lambda: self.abort(scope["client"]), None)

    async def _chat(self, scope: Scope, receive: Receive, send: Send, raw: bytes) -> None:
        body = parse(raw)
        index, arrived = self._log.arrived(), self.now()
        known = {} if isinstance(body, str) else body
        agent = agent_of(scope, known)
        request = request_of(scope, known, index, self._of_agent[agent], arrived)
        exchange = Exchange(request, send, self.now, lambda: self.abort(scope["client"]), self._log)
        exchange.concurrency = self._log.open_requests
        try:
            outcome = await self._refused(scope, exchange, body)
            if outcome is None:
                self._of_agent[agent] += 1
                outcome = await self._behave(exchange, receive)
        except Exception as failure:
            self.failure = self.failure or failure
            exchange.end("error")
            raise
        exchange.end(outcome)

    async def _refused(
        self, scope: Scope, exchange: Exchange, body: Mapping[str, Any] | str
    ) -> Outcome | None:
        request = exchange.request
        if self._api_key is not None and header_of(scope, "authorization") != f"Bearer {self._api_key}":
            return await self._refuse(exchange, Behaviour("auth"))
        fault = (
            body if isinstance(body, str) else pair_fault(request.messages) if self._strict_pairs else None
        )
        if fault is not None:
            await exchange.json(400, error_body(fault, "invalid_request_error", None), "invalid")
            return "invalid"
        asked = request.prompt_tokens + (request.max_tokens or 0)
        admitted = self._windows.admit(exchange.now(), request.model, asked)
        if isinstance(admitted, Entry):
            exchange.entry = admitted
            return None
        await self._limited(exchange, admitted)
        return "rate"

    async def _limited(self, exchange: Exchange, refusal: Refusal) -> None:
        model, unit = exchange.request.model, refusal.resource
        text = (
            f"Limit {refusal.limit}, Used {refusal.used}, Requested {refusal.asked} in {refusal.per_s:g} s."
        )
        wait: float | None = refusal.retry_after_s
        if wait == float("inf"):
            text, wait = f"Request too large for {model} on {unit}: {text}", None
        else:
            text = f"Rate limit reached for {model} on {unit}: {text}"
        await self._say_429(exchange, text, unit, "rate", wait)

    async def _say_429(
        self, exchange: Exchange, text: str, kind: str, outcome: Literal["rate", "quota"], wait: float | None
    ) -> None:
        code = "rate_limit_exceeded" if outcome == "rate" else "insufficient_quota"
        headers = self._limit_headers(exchange)
        if wait is not None:
            headers += hint_headers(self._hints, wait, time.time())
            if "text" in self._hints:
                text += f" Please try again in {wait:.3f}s."
        await exchange.json(429, error_body(text, kind, code), outcome, headers)

    def _limit_headers(self, exchange: Exchange) -> list[tuple[str, str]]:
        if "x-ratelimit" not in self._hints:
            return []
        return self._windows.headers(exchange.now(), exchange.request.model)

    async def _refuse(self, exchange: Exchange, behaviour: Behaviour) -> Outcome | None:
        """Answer with the refusal that the behaviour is; None if it is none."""
        wait = None if behaviour.retry_after_s is None else behaviour.retry_after_s * self._scale
        if behaviour.kind == "rate":
            text = f"Rate limit reached for {exchange.request.model} on requests."
            await self._say_429(exchange, text, "requests", "rate", wait)
            return "rate"
        if behaviour.kind == "quota":
            text = "You exceeded your current quota, please check your plan and billing details."
            await self._say_429(exchange, text, "insufficient_quota", "quota", wait)
            return "quota"
        if behaviour.kind == "auth":
            refusal = error_body("Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
            await exchange.json(401, refusal, "auth")
            return "auth"
        return None

    async def _behave(self, exchange: Exchange, receive: Receive) -> Outcome:
        if self._stopping:
            exchange.abort()
            return "stopped"
        behaviour = self._choose(exchange.request)
        refused = await self._refuse(exchange, behaviour)
        if refused is not None:
            return refused
        exchange.concurrency = self._log.took_in(exchange.now())
        exchange.taken_in = True
        self._open.add(exchange)
        work = exchange.work = asyncio.create_task(self._in_turn(exchange, behaviour))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.client_closed_s = exchange.now()
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled():
                return "stopped" if exchange.stopped else exchange.outcome_if_left
            return work.result()
        finally:
            work.cancel()
            gone.cancel()
            self._leave(exchange)

    def _leave(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if self._stopping and not self._open:
            self._emptied.set()

    async def _in_turn(self, exchange: Exchange, behaviour: Behaviour) -> Outcome:
        if self._slots is None:
            return await self._answer(exchange, behaviour)
        async with self._slots:
            return await self._answer(exchange, behaviour)

    async def _answer(self, exchange: Exchange, behaviour: Behaviour) -> Outcome:
        kind, request = behaviour.kind, exchange.request
        exchange.taken_up_s = taken_up = exchange.now()
        if kind == "hang":
            exchange.outcome_if_left = "hung"
            await _for_ever()
        assert isinstance(behaviour.service_s, (int, float)), "drawn before"
        begun = taken_up + behaviour.service_s * self._scale
        await asyncio.sleep(begun - taken_up)
        if kind == "drop" and behaviour.after == 0:
            return exchange.cut()
        if kind == "error" or (kind == "stream_error" and not request.stream):
            await exchange.json(500, error_body("The server had an error.", "server_error", None), "error")
            return "error"
        if kind == "overloaded":
            wait = behaviour.retry_after_s
            hints = [] if wait is None else hint_headers(self._hints, wait * self._scale, time.time())
            await exchange.json(503, error_body("The engine is overloaded.", "overloaded", None), "overloaded", hints)
            return "overloaded"
        reply = Reply(request, behaviour, self._seed)
        return await (self._stream if request.stream else self._whole)(exchange, behaviour, reply, begun)

    async def _stream(self, exchange: Exchange, behaviour: Behaviour, reply: Reply, begun: float) -> Outcome:
        kind, gap = behaviour.kind, behaviour.gap_s * self._scale
        await exchange.head(200, "text/event-stream; charset=utf-8", self._limit_headers(exchange))
        if kind == "malformed":
            await exchange.body(
                b'data: {"id": "chatcmpl-broken", "choices": [{"delta"\n\ndata: [DONE]\n\n', ends="malformed"
            )
            return "malformed"
        left = reply.output_tokens
        for place, frame in enumerate(reply.frames()):
            if kind != "answer" and place == behaviour.after:
                break
            if place:  # each in its own time: what one comes late is not added to the next
                await asyncio.sleep(max(0.0, begun + place * gap - self.now()))
            tokens = min(left, behaviour.tokens_per_chunk)
            left -= tokens
            await exchange.chunk(frame, tokens)
        if kind == "stall":
            exchange.outcome_if_left = "stalled"
            await _for_ever()
        if kind == "drop":
            return exchange.cut()
        if kind == "stream_error":
            error = error_body("Rate limit reached inside the stream.", "requests", "rate_limit_exceeded")
            await exchange.body(b"data: " + json.dumps(error).encode() + b"\n\n", ends="stream_error")
            return "stream_error"
        exchange.output_tokens = reply.output_tokens
        await exchange.body(reply.ending(), ends="answered")
        return "answered"

    async def _whole(self, exchange: Exchange, behaviour: Behaviour, reply: Reply, begun: float) -> Outcome:
        kind = behaviour.kind
        over = begun + behaviour.gap_s * self._scale * max(0, reply.chunks - 1)
        await asyncio.sleep(max(0.0, over - self.now()))
        data = json.dumps(reply.whole()).encode()
        if kind == "malformed":
            data = data[: len(data) // 2]
        await exchange.head(200, "application/json", self._limit_headers(exchange), len(data))
        if kind in ("stall", "drop"):
            await exchange.body(data[: len(data) // 2])
            if kind == "stall":
                exchange.outcome_if_left = "stalled"
                await _for_ever()
            return exchange.cut()
        if kind != "malformed":
            exchange.output_tokens = reply.output_tokens
        exchange.first_chunk_s = exchange.now()
        exchange.chunks_sent = 1
        outcome: Outcome = "malformed" if kind == "malformed" else "answered"
        await exchange.body(data, ends=outcome)
        return outcome


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: the future has no owner")


def _no_abort(client: tuple[str, int]) -> None:
    raise AssertionError(f"no server to cut the connection of {client}")
