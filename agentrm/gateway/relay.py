"""One call at one engine: sent, and its answer passed on as it comes.

Nothing goes to the client before the engine's first bytes, so that a call whose engine dies without a word can go to
another one. From then on each event is passed on in the step that brings its last byte; a client that reads slowly
slows the engine down, and a client that leaves closes the engine's connection, which ends the call there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from agentrm.gateway.connections import Answer, ConnectFailed
from agentrm.gateway.desk import Seat, Turn
from agentrm.gateway.frames import Frames, FrameTooLarge
from agentrm.gateway.refusals import Refused
from agentrm.gateway.upstream import passed_back
from agentrm.programs.backends import Usage

__all__ = ["ClientGone", "EngineFailed", "Relay", "Sending", "broken_off"]

EVENTS_PER_COUNT = 32
"""How often the scheduler is told how long an answer has become, in events."""
MOST_UNREAD_BYTES = 1 << 16
"""Of an answer that its client does not read; then the engine has to wait."""


class EngineFailed(Exception):
    """The engine broke off. `dead`: it took no connection."""

    def __init__(self, place: str, cause: BaseException, *, dead: bool = False) -> None:
        super().__init__(f"engine {place!r} broke off: {type(cause).__name__} {cause}".strip())
        self.dead = dead


class EngineSaid(Exception):
    """An engine's refusal, in the form that the manager's back-off reads."""

    def __init__(self, status: int, headers: Any) -> None:
        super().__init__(f"status {status}")
        self.status_code, self.headers = status, headers


class ClientGone(Exception):
    """Nobody is left to read the answer."""


class _Down(web.StreamResponse):
    _send_headers_immediately = False  # they go out with the first event, in one packet


class Sending:
    """The answer to a client, as far as it has gone out.

    It begins in `flush`, with all that was written before. From then on what is written goes straight to the client's
    connection, where it would wait for nothing anyhow as long as `write` returns True.
    """

    __slots__ = ("_before", "_chunked", "_request", "down")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._before = bytearray()
        self._chunked = False
        self.down: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        return self.down is not None

    def write(self, data: bytes) -> bool:
        """False: no more before the next `flush`, please. Raises ClientGone."""
        if self.down is None:
            self._before += data
            return False
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return transport.get_write_buffer_size() <= MOST_UNREAD_BYTES

    async def flush(self, headers: CIMultiDict[str]) -> None:
        """Waits until the client has read most of what was written. `headers`: of an answer that begins here. Raises
        ClientGone."""
        try:
            if self.down is not None:
                await self._request.writer.drain()
            elif self._before:
                headers["Cache-Control"], headers["X-Accel-Buffering"] = "no-cache", "no"
                self.down = _Down(headers=headers)
                await self.down.prepare(self._request)
                self._chunked = "Transfer-Encoding" in self.down.headers
                await self.down.write(bytes(self._before))
        except ConnectionError as gone:
            raise ClientGone from gone

    async def end(self, headers: CIMultiDict[str]) -> web.StreamResponse:
        """`headers` as in `flush`. Raises ClientGone."""
        await self.flush(headers)
        try:
            if self.down is None:  # an answer without a word
                self.down = _Down(headers=headers)
                await self.down.prepare(self._request)
            await self.down.write_eof()
        except ConnectionError as gone:
            raise ClientGone from gone
        return self.down

    async def refuse(self, refused: Refused) -> web.StreamResponse:
        """Tells the client why there is no answer, or why it breaks off here. Raises ClientGone."""
        if self.down is None:
            headers = {"Content-Type": "application/json", **refused.headers()}
            return web.Response(status=refused.status, body=refused.text(), headers=headers)
        self.write(refused.frame())
        return await self.end(CIMultiDict())


class Relay:
    """Passes calls on. `most_bytes`: of a whole reply, or of one event. `first(turn)`: called as an answer begins."""

    def __init__(self, most_bytes: int, first: Callable[[Turn], object]) -> None:
        self._most, self._first = most_bytes, first

    async def call(
        self, turn: Turn, seat: Seat, request: web.Request, keyed: bool, sending: Sending
    ) -> web.StreamResponse:
        """One attempt. Raises EngineFailed, ClientGone, Refused; whatever the leases raise passes through."""
        asked, place = turn.asked, seat.place
        headers = request.headers
        if keyed and "Authorization" in headers:  # the key is for the gateway alone
            kept = headers.copy()
            del kept["Authorization"]
            headers = kept  # type: ignore[assignment]
        try:
            answer = await place.engine.post(asked.api, asked.sent(seat.fields), headers)
        except OSError as error:
            seat.lease.refund()
            raise EngineFailed(place.name, error, dead=isinstance(error, ConnectFailed)) from error
        try:
            if answer.status < 200 or 300 <= answer.status < 400:
                raise Refused(502, elsewhere(place.name, answer.status), "engine_failed")
            if answer.status == 200 and answer.content_type == "text/event-stream":
                return await self._stream(turn, seat, answer, sending)
            return await self._whole(turn, seat, answer)
        except OSError as error:
            if not sending.started:  # nothing came of it
                seat.lease.refund()
            raise EngineFailed(place.name, error) from error
        finally:
            answer.close()  # does nothing if it was read to its end

    async def _stream(self, turn: Turn, seat: Seat, answer: Answer, sending: Sending) -> web.StreamResponse:
        frames = Frames(not turn.asked.show_usage, self._most)
        headers, lease, told = passed_back(answer, seat.place.name), seat.lease, 0

        def passed(data: bytes) -> bool:
            nonlocal told
            ready = frames.feed(data)
            more = not ready or sending.write(ready)
            turn.events = frames.events
            if lease.limits_output:
                lease.heartbeat(frames.events, estimated=True)
            else:
                lease.heartbeat()
            if told and frames.events >= told + EVENTS_PER_COUNT:
                told = frames.events
                turn.group.progress(turn.ticket, told)
            return more

        try:
            over = False
            while not over:
                over = await answer.pass_on(passed)
                await sending.flush(headers)
                if not told and sending.started:
                    told = frames.events
                    self._first(turn)
                    turn.group.progress(turn.ticket, told)
        except FrameTooLarge:
            text = f"an event of the engine's stream is longer than {self._most} bytes"
            raise Refused(502, text, "reply_too_large") from None
        if rest := frames.rest():
            sending.write(rest)
        turn.tool = frames.tool
        told_usage = seat.place.backend.usage(frames.last) if frames.last is not None else None
        turn.usage = told_usage or Usage(turn.ticket.expected_tokens, frames.events)
        return await sending.end(headers)

    async def _whole(self, turn: Turn, seat: Seat, answer: Answer) -> web.StreamResponse:
        parts, size = list[bytes](), 0

        def kept(data: bytes) -> bool:
            nonlocal size
            size += len(data)
            if size > self._most:
                raise Refused(502, f"the engine's reply is longer than {self._most} bytes", "reply_too_large")
            parts.append(data)
            seat.lease.heartbeat()
            return True

        await answer.pass_on(kept)
        body = b"".join(parts)
        self._first(turn)
        if answer.status == 200:
            turn.usage, turn.tool = self._told(body, turn, seat)
        elif answer.status == 429:
            seat.lease.fail(EngineSaid(answer.status, answer.headers))
        return web.Response(status=answer.status, body=body, headers=passed_back(answer, seat.place.name))

    def _told(self, body: bytes, turn: Turn, seat: Seat) -> tuple[Usage, str | None]:
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):  # passed on as it is; what it cost is a guess
            reply = None
        told = seat.place.backend.usage(reply) if isinstance(reply, dict) else None
        return told or Usage(turn.ticket.expected_tokens, len(body) // 4), _tool(reply)


def _tool(reply: object) -> str | None:
    """The first tool that a chat completion asks for."""
    try:
        name = reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        return None
    return name if isinstance(name, str) else None


def elsewhere(place: str, status: int) -> str:
    """What a client is told whose engine sends it away: it could not go there."""
    return (
        f"engine {place!r} answered {status} instead of the call: it has to serve it itself, not send it elsewhere. "
        f"Correct gateway.backends.{place}.url"
    )


def broken_off(failure: EngineFailed, started: bool) -> Refused:
    """What a client is told whose engine broke off."""
    if started:
        return Refused(502, f"{failure}. The answer is incomplete; send the request again", "engine_failed", 1.0)
    return Refused(502, f"{failure}. No engine has answered; nothing came of the request", "engine_failed", 1.0)
