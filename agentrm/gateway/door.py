"""Connections of clients: how many, how long each may keep the gateway waiting, and what it is told if it errs.

aiohttp reads and answers the requests. It bounds no connection that sends half a head or never takes its answer, and it
reports heads that can't be read as text with a traceback; both are done here, with one timer for each connection that
owes something.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from agentrm.gateway.refusals import RETRY_S, Refused

__all__ = ["FAULT", "Door", "kept_busy"]

_log = logging.getLogger("agentrm.gateway")

KEPT_S = 600.0
"""Seconds that a connection is kept between two requests."""
TURNED_AWAY_S = 2.0
"""Seconds in which a client that is turned away has to read why."""
HEAD_BYTES = 16_384
"""The longest line of a head."""

FAULT = Refused(500, "the gateway failed at this request, which is a fault of its own; its log says why", "internal")


class Door(web.BaseSite):
    """Where a runner's server listens. `head_s`: seconds for a TLS handshake, then for a whole head from a connection's
    first moment, or from the first byte of a later request; `unread_s`: seconds for which a client may take nothing of
    an answer that waits for it; `most`: connections at once, one more is answered 503."""

    __slots__ = ("_host", "_port", "head_s", "most", "open", "unread_s")

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, head_s: float, unread_s: float, most: int, **more: Any
    ) -> None:
        super().__init__(runner, **more)
        self._host, self._port = host, port
        self.head_s, self.unread_s, self.most = head_s, unread_s, most
        self.open = 0
        """Connections that are served, or whose TLS handshake goes on."""

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Knock(self) if self.open < self.most else _TurnedAway(self.most),
            self._host, self._port, ssl=self._ssl_context, backlog=self._backlog,
            ssl_handshake_timeout=self.head_s if self._ssl_context else None,
        )  # fmt: skip

    def left(self) -> None:
        """One connection less."""
        self.open -= 1

    def connection(self) -> _Connection:
        """What serves one connection."""
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None, "it listens only while its runner runs"
        return _Connection(
            self, server, loop=loop, access_log=None, keepalive_timeout=KEPT_S, max_field_size=HEAD_BYTES
        )


class _Knock(asyncio.Protocol):
    """A connection from its first moment on: counted, and handed to whoever serves it once it can be spoken to, which
    with TLS is after the handshake. Of a handshake that fails the event loops tell a protocol nothing, they only let
    go of it: uvloop at once, asyncio when the garbage is collected. Then, or when its time is over, it counts no more.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        door.open += 1
        self._uncount = weakref.finalize(self, door.left)
        self._uncount.atexit = False
        self._late = asyncio.get_running_loop().call_later(door.head_s, self._uncount)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._late.cancel()
        if self._uncount.detach() is None:
            transport.abort()  # type: ignore[attr-defined]  # its time was over in this very moment
            return
        connection = self._door.connection()  # counted until it is lost
        transport.set_protocol(connection)
        connection.connection_made(transport)


class _Connection(web.RequestHandler):
    """`busy`: a request of it is being answered. Then no head is owed."""

    __slots__ = ("_began", "_door", "_owed", "busy")

    def __init__(self, door: Door, server: web.Server, **more: Any) -> None:
        super().__init__(server, **more)
        self._door = door
        self._began = self.busy = False
        self._owed: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owes("head", self._door.head_s, self._no_head)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.left()
        for timer in self._owed.values():
            timer.cancel()
        self._owed.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and not self.busy:
            self._began = True
            self._owes("head", self._door.head_s, self._no_head)
        super().data_received(data)

    def request_began(self) -> None:
        """A whole head has come."""
        self.busy = True
        self._paid("head")

    def request_ended(self) -> None:
        self.busy = self._began = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._owes("read", self._door.unread_s, self._unread)

    def resume_writing(self) -> None:
        self._paid("read")
        super().resume_writing()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What can't be read as HTTP, in the form of the gateway's other refusals."""
        if status >= 500:
            _log.error("%s %s failed", request.method, request.path, exc_info=exc)
            why = FAULT
        else:
            said = (message or str(exc)).strip().splitlines()
            text = f"the request can't be read: {(said[0] if said else type(exc).__name__)[:200].rstrip(': ')}"
            long = isinstance(exc, LineTooLong)
            why = Refused(431, text, "head_too_large") if long else Refused(status, text, "invalid_http")
            _log.warning("a client at %s is answered %d: %s", request.remote, why.status, text)
        if request.writer.output_size:  # the answer has begun: all that can be done is to break it off
            raise ConnectionError("the request failed within its answer")
        answer = web.json_response(why.body(), status=why.status)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **more: Any) -> None:
        """One line of a body that breaks off or can't be decoded: that is its client's business."""
        if isinstance(more.get("exc_info"), web.RequestPayloadError):
            _log.warning("the body of a request can't be read to its end; its connection is closed")
        else:
            super().log_exception(*args, **more)

    def _owes(self, what: str, within_s: float, expired: Callable[[], None]) -> None:
        if what not in self._owed and self.transport is not None:
            self._owed[what] = self._loop.call_later(within_s, expired)

    def _paid(self, what: str) -> None:
        timer = self._owed.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _no_head(self) -> None:
        if self._began and self.transport is not None and not self.writing_paused:
            text = f"the head of the request did not arrive within {self._door.head_s:g} s (gateway.head_s)"
            self.transport.write(_raw(Refused(408, text, "request_timeout")))
        self.force_close()

    def _unread(self) -> None:
        if self.transport is not None:
            _log.warning("a client took nothing of its answer for %g s: its connection is broken", self._door.unread_s)
            self.transport.abort()


class _TurnedAway(asyncio.Protocol):
    """Tells a client that there are too many, and reads on until it has heard it: else it might never see why."""

    def __init__(self, most: int) -> None:
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        there = cast("asyncio.Transport", transport)
        text = f"{self._most} connections are open already (gateway.max_connections)"
        there.write(_raw(Refused(503, text, "too_many_connections", RETRY_S)))
        self._end = asyncio.get_running_loop().call_later(TURNED_AWAY_S, there.abort)
        if there.can_write_eof():
            there.write_eof()
        else:  # TLS knows no half-closed connections
            there.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end.cancel()


def _raw(why: Refused) -> bytes:
    """A whole answer, for connections on which no request has come."""
    body = why.text()
    reason = {408: "Request Timeout", 503: "Service Unavailable"}[why.status]
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    head = [f"HTTP/1.1 {why.status} {reason}", *(f"{k}: {v}" for k, v in {**fields, **why.headers()}.items()), "", ""]
    return "\r\n".join(head).encode() + body


@web.middleware
async def kept_busy(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tells the connection that its request is being answered; what aiohttp itself refuses gets the form of the other
    refusals."""
    connection = cast("_Connection", request.protocol)
    connection.request_began()
    try:
        return await handler(request)
    except web.HTTPException as error:
        why = Refused(error.status, f"{request.method} {request.path_qs[:200]}: {error.reason}", "not_served")
        return web.json_response(why.body(), status=why.status)
    finally:
        connection.request_ended()
