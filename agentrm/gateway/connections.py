"""The connections that carry clients' calls to an engine: kept open, one call on each at a time.

A general client wakes a task for each piece of an answer. With thousands of pieces a second that is most of what a
gateway costs, so here a piece goes from the engine's socket to its reader in one step, in `data_received`; a task is
woken where an answer begins, where it is over, and where its reader has enough for the moment.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDict

__all__ = ["Answer", "ConnectFailed", "Connections"]

KEPT_S = 4.0
"""Seconds that a connection is kept without a call: less than the 5 s after which uvicorn, and with it vLLM and SGLang,
closes it, so that a call is rarely sent into a connection that is being closed."""
MOST_HEAD_BYTES = 1 << 18
"""Of an answer before its body, and of whatever is none between and behind the parts of one."""
MOST_AHEAD_BYTES = 1 << 16
"""Of a body that nobody reads yet; then the engine has to wait."""


class ConnectFailed(OSError):
    """The engine takes no connection."""


class Answer:
    """What an engine answers to one call: `status` and `headers`, and the body by `pass_on`."""

    __slots__ = ("_begun", "_connection", "_error", "_parts", "_sink", "_waiter", "complete", "headers", "status")

    def __init__(self, connection: _Connection, begun: asyncio.Future[None]) -> None:
        self._connection: _Connection | None = connection
        self._begun = begun
        self._parts: list[bytes] = []
        self._sink: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.complete = False
        """Whether the body has arrived to its end."""

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def pass_on(self, sink: Callable[[bytes], bool]) -> bool:
        """Gives the body to `sink` as it comes, each time all there is, until it is over (True) or `sink` returns False
        because it wants no more for now: then the engine waits until the next `pass_on`.

        Raises OSError where the engine breaks off, and whatever `sink` raises.
        """
        if self._parts and not sink(self._taken()):
            return self.complete
        if self._error is not None:
            raise self._error
        if not self.complete and self._connection is not None:
            self._sink, self._waiter = sink, asyncio.get_running_loop().create_future()
            self._connection.read_on()
            try:
                await self._waiter
            finally:
                self._sink = self._waiter = None
        return self.complete

    def close(self) -> None:
        """No more of it is wanted; before its end that closes the connection, which ends the call at the engine."""
        if self._connection is not None:
            self._connection.abort()

    # --- for the connection ---

    def begins(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)

    def adds(self, data: bytes) -> None:
        self._parts.append(data)

    def arrived(self) -> None:
        """After each read: what has come goes on."""
        if self._sink is None:
            if self._connection is not None and sum(map(len, self._parts)) > MOST_AHEAD_BYTES:
                self._connection.hold()
        elif self._parts:
            try:
                more = self._sink(self._taken())
            except Exception as error:  # noqa: BLE001 - the reader's own, raised where it waits
                self._wake(error)
                return
            if not more and self._connection is not None:
                self._connection.hold()
                self._wake()

    def ends(self, error: OSError | None = None) -> None:
        """The body is complete, or the engine broke off."""
        self.complete, self._error, self._connection = error is None, error, None
        if not self._begun.done() and error is not None:
            self._begun.set_exception(error)
        self._wake(error)

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wake(self, error: Exception | None = None) -> None:
        self._sink = None
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)


class _Connection(asyncio.Protocol):
    """One connection. `idle(self)` once an answer is complete and another call may follow; `lost(self)` at its end."""

    def __init__(self, idle: Callable[[_Connection], object], lost: Callable[[_Connection], object]) -> None:
        self._on_idle, self._on_lost = idle, lost
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._held = False
        self.since = 0.0
        """Since when it has carried no call."""

    # --- a call ---

    async def send(self, request: bytes) -> Answer:
        """Sends a call and waits until its answer begins. Raises OSError."""
        if not self.usable or self._transport is None:  # it took the connection and closed it
            raise ConnectionResetError("the connection was closed before the call was sent")
        assert self._answer is None
        self._in_head, self._head_bytes, self._complete, self._unsized = True, 0, False, True
        begun = self._loop.create_future()
        answer = self._answer = Answer(self, begun)
        self._transport.write(request)
        try:
            await begun
        except BaseException:
            self.abort()
            raise
        return answer

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def hold(self) -> None:
        if not self._held and self.usable and self._transport is not None:
            self._transport.pause_reading()
            self._held = True

    def read_on(self) -> None:
        if self._held and self.usable and self._transport is not None:
            self._held = False
            self._transport.resume_reading()

    # --- from the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nobody has asked for anything
            self.abort()
            return
        broken: OSError | None = None
        try:
            self._head_bytes += len(data)
            self._parser.feed_data(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self._complete:
                broken = OSError(f"its answer has no end of its headers after {MOST_HEAD_BYTES} bytes")
        except httptools.HttpParserUpgrade:
            self._keep = False
        except httptools.HttpParserError as error:
            self._keep = False
            broken = OSError(f"this is no answer in HTTP: {error}")
        answer.arrived()
        if self._complete or broken is not None:
            self._answer = None
            answer.ends(None if self._complete else broken)
            # What answers before it has the whole call may take the rest of it for another one.
            whole = self._transport is not None and not self._transport.get_write_buffer_size()
            if self._complete and self._keep and whole:
                self.read_on()
                self._on_idle(self)
            else:
                self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)
        answer, self._answer = self._answer, None
        if answer is not None:
            if error is None and self._unsized and not self._in_head:  # such a body ends with the connection
                answer.ends()
            else:
                answer.ends(error if isinstance(error, OSError) else ConnectionResetError("the connection was closed"))

    # --- from the parser ---

    def on_message_begin(self) -> None:
        if self._complete:  # a second answer: nobody has asked for it, and nobody may take it for his own
            self._keep, self._answer = False, None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head or self._answer is None:  # a trailer says nothing that is passed on
            return
        text = name.decode("ascii", "replace")
        self._answer.headers.add(text, value.decode("utf-8", "surrogateescape"))
        if text.lower() in ("content-length", "transfer-encoding"):
            self._unsized = False

    def on_headers_complete(self) -> None:
        if self._answer is None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:  # only announces the answer
            self._answer.headers.clear()
            self._unsized = True
            return
        self._in_head = False
        self._answer.status = status
        self._answer.begins()

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        if self._answer is not None:
            self._answer.adds(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._in_head:
            self._complete, self._keep = True, self._parser.should_keep_alive()


class Connections:
    """All connections to one engine, without a limit in number: that is the lanes' business.

    `root`: its address without a path of the API. `connect_s`: seconds to connect in.
    """

    def __init__(self, root: str, connect_s: float) -> None:
        parts = urlsplit(root)
        secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._path, self._connect_s = parts.path.rstrip("/"), connect_s
        self._tls = ssl.create_default_context() if secure else None
        self._named = parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii").decode()
        self._idle: deque[_Connection] = deque()
        self._loop = asyncio.get_running_loop()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends a call and waits until its answer begins. Raises ConnectFailed, or OSError once it was sent."""
        lines = [f"POST {self._path}{path} HTTP/1.1", f"Host: {self._named}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header can't hold the end of a line")
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"
        connection = self._kept() or await self._connect()
        return await connection.send(head + body)

    def close(self) -> None:
        """Closes those that carry no call."""
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> _Connection | None:
        """The one used last, and none that has waited too long."""
        while self._idle and self._loop.time() - self._idle[0].since > KEPT_S:
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        made: list[_Connection] = []

        def factory() -> _Connection:
            made.append(_Connection(self._keep, self._lost))
            return made[-1]

        try:
            _, connection = await asyncio.wait_for(
                self._loop.create_connection(factory, self._host, self._port, ssl=self._tls, family=socket.AF_UNSPEC),
                self._connect_s,
            )
        except BaseException as error:
            for one in made:
                one.abort()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectFailed(f"no connection within {self._connect_s:g} s") from error
            if isinstance(error, OSError):
                raise ConnectFailed(str(error)) from error
            raise
        return connection

    def _keep(self, connection: _Connection) -> None:
        connection.since = self._loop.time()
        self._idle.append(connection)

    def _lost(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
