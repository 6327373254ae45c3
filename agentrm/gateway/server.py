"""The HTTP side of the gateway: routes, the life of a request, start and stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp import web

from agentrm.config import Config, Pool
from agentrm.errors import ConfigError
from agentrm.gateway.asked import Api, plain_json, read
from agentrm.gateway.desk import Desk, Turn
from agentrm.gateway.door import FAULT, Door, kept_busy
from agentrm.gateway.keys import Caller, Keys
from agentrm.gateway.metrics import Tally, page
from agentrm.gateway.places import Places
from agentrm.gateway.refusals import Refused, refused
from agentrm.gateway.relay import ClientGone, EngineFailed, Relay, Sending, broken_off
from agentrm.gateway.upstream import session
from agentrm.programs.backends import Reply, TransportError

if TYPE_CHECKING:
    from types import TracebackType

    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Gateway"]

_log = logging.getLogger("agentrm.gateway")

APIS: tuple[Api, ...] = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
ATTEMPTS = 3
"""Engines that one call may be sent to before it is taken to be the call that breaks them."""
BODY_S = 60.0
"""Seconds in which a request has to arrive whole."""
CLOSING_S = 5.0
"""Seconds that connections are given to close once all calls have ended."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """A server in the running event loop: `async with Gateway(config) as gateway: ... gateway.url`.

    `config`: the whole configuration; its section `gateway` says where to listen and which engines there are. Raises
    ConfigError for what can't work, OSError where the port is taken.
    """

    def __init__(self, config: Config) -> None:
        self.config = config.gateway
        if not self.config.backends:
            raise ConfigError("gateway.backends", {}, "at least one engine")
        self._keys = Keys(self.config.keys)
        pools = {name: Pool(lanes=one.lanes) for name, one in self.config.backends.items() if name not in config.pools}
        self._manager_config = replace(config, pools={**config.pools, **pools})
        self._rm: ResourceManager | None = None
        self._tally = Tally()
        self._relay = Relay(self.config.max_reply_bytes, self._first)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ready = False

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        assert self._runner is not None, "it was not started"
        host, port = self._runner.addresses[0][:2]
        scheme = "https" if self.config.tls.cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def rm(self) -> ResourceManager:
        """The manager whose lanes, limits and budgets hold for the calls."""
        assert self._rm is not None, "it was not started"
        return self._rm

    # --- start and stop ---

    async def start(self) -> None:
        """Asks the engines how they are, then listens. Engines that are down are waited for, not refused."""
        from agentrm.scheduling.manager import ResourceManager

        tls = self._tls()
        self._session = session(self.config.connect_s)
        try:
            self._rm = ResourceManager.from_config(self._manager_config, name="gateway")
            self._places = Places(self.config, self._session, lambda place: self._desk.changed(place))
            self._desk = Desk(self.config, self._rm, self._places, self._tally)
            await self._places.look()
            app = web.Application(client_max_size=self.config.max_request_bytes, middlewares=[kept_busy])
            app.add_routes(self._routes())
            self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CLOSING_S)
            await self._runner.setup()
            door = Door(
                self._runner, self.config.host, self.config.port, head_s=self.config.head_s,
                unread_s=self.config.unread_s, most=self.config.max_connections, ssl_context=tls, backlog=2048,
            )  # fmt: skip
            await door.start()
        except BaseException:
            await self._close()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._places.watch())
        self._ready = True

    async def look(self) -> None:
        """Asks the engines how they are, now. It happens by itself every `gateway.poll_s` seconds."""
        await self._places.look()

    @property
    def open_requests(self) -> int:
        """Calls that wait or run."""
        return len(self._desk.open)

    async def stop(self, drain_s: float | None = None) -> None:
        """Takes nothing new, gives running calls `drain_s` seconds (default: the configuration's), then ends them."""
        self._ready = False
        if self._runner is not None:
            await self._desk.drain(self.config.drain_s if drain_s is None else drain_s)
        await self._close()

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._runner is not None:
            await self._runner.cleanup()
            await self._desk.close()
            self._places.close()
        if self._rm is not None:
            await self._rm.aclose()
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def _tls(self) -> ssl.SSLContext | None:
        if self.config.tls.cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.config.tls.cert, self.config.tls.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("gateway.tls", self.config.tls.cert, f"a certificate with its key ({error})") from error
        return context

    # --- routes ---

    def _routes(self) -> list[web.RouteDef]:
        routes = [
            *(web.post(api, self._guarded(self._calls(api))) for api in APIS),
            web.get("/v1/models", self._guarded(self._models)),
            web.get("/programs", self._guarded(self._programs)),
            web.post("/programs/release", self._guarded(self._release)),
            web.get("/metrics", self._guarded(self._metrics)),
            web.get("/health", self._health),
            web.get("/ready", self._readiness),
            web.route("*", "/{path:.*}", self._nowhere),
        ]
        return [web.route(one.method, one.path, one.handler, expect_handler=going_on) for one in routes]

    def _guarded(self, work: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await work(request, self._keys.caller(request.headers))
            except Exception as error:  # noqa: BLE001 - the client is told that it was a fault of ours, the log which
                why = _told(error, request)
            if request.writer.output_size:  # an answer has begun: all that can be done is to break it off
                if request.transport is not None:
                    request.transport.abort()
            self._tally.add("refused", code=why.code)
            return web.json_response(why.body(), status=why.status, headers=why.headers())

        return handle

    async def _nowhere(self, request: web.Request) -> web.Response:
        """What is served under no such path, or not with this method."""
        served = {route.path: route.method for route in self._routes()[:-1]}
        headers = {}
        if (method := served.get(request.path)) is not None:
            text = f"{request.path} is asked with {method}, not with {request.method}"
            why, headers["Allow"] = Refused(405, text, "method_not_allowed"), method
        else:
            text = f"nothing is served at {request.path[:200]}; there are {', '.join(served)}"
            why = Refused(404, text, "not_found")
        self._tally.add("refused", code=why.code)
        return web.json_response(why.body(), status=why.status, headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readiness(self, request: web.Request) -> web.Response:
        """Whether a call sent now would be taken: for load balancers."""
        up = [place.name for place in self._places.all.values() if place.up]
        ready = self._ready and bool(up)
        body = {"status": "ready" if ready else "draining" if self._desk.closing else "not ready", "backends_up": up}
        return web.json_response(body, status=200 if ready else 503)

    async def _metrics(self, request: web.Request, caller: Caller) -> web.Response:
        text = page(self._tally, self._desk.gauges())
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _models(self, request: web.Request, caller: Caller) -> web.Response:
        places = [place for place in self._places.all.values() if place.up]
        asked = [asyncio.ensure_future(place.engine.request("GET", "/v1/models")) for place in places]
        try:
            if asked:
                await asyncio.wait(asked, timeout=self.config.poll_limit_s)
        finally:
            for one in asked:
                one.cancel()
        found: dict[str, Any] = {}
        for one in asked:
            if one.done() and not one.cancelled() and not isinstance(one.exception(), TransportError):
                for model in _models_in(one.result()):
                    found.setdefault(model["id"], model)
        return web.json_response({"object": "list", "data": list(found.values())})

    async def _programs(self, request: web.Request, caller: Caller) -> web.Response:
        """The programs of the caller's tenant."""
        found = [
            {
                "program_id": program.id.partition("/")[2], "status": program.status, "phase": program.phase,
                "backend": program.backend, "context_tokens": program.context_tokens, "turns": program.turns,
                "running": program.running, "waiting": program.waiting, "pauses": program.pauses,
            }
            for group in self._desk.groups
            for program in group.scheduler.programs.values()
            if program.tenant == caller.tenant and "/" in program.id
        ]  # fmt: skip
        return web.json_response({"programs": found})

    async def _release(self, request: web.Request, caller: Caller) -> web.Response:
        body = await self._body(request)
        try:
            name = plain_json(body)["program_id"]
        except (ValueError, KeyError, TypeError):
            name = None
        if not isinstance(name, str):
            raise Refused(400, 'the body has to be {"program_id": NAME}', "invalid_request")
        return web.json_response({"program_id": name, "released": self._desk.release(caller.tenant, name)})

    async def _body(self, request: web.Request) -> bytes:
        try:
            if request.content.is_eof():
                return await request.read()
            return await asyncio.wait_for(request.read(), BODY_S)
        except web.HTTPRequestEntityTooLarge:
            text = f"the request is longer than {self.config.max_request_bytes} bytes (gateway.max_request_bytes)"
            raise Refused(413, text, "too_large") from None
        except web.RequestPayloadError as error:
            raise Refused(400, f"the body can't be decoded ({error.__cause__ or error})", "invalid_request") from None
        except asyncio.TimeoutError:
            raise Refused(408, f"the request did not arrive within {BODY_S:g} s", "request_timeout") from None

    # --- the life of a call ---

    def _calls(self, api: Api) -> Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request, caller: Caller) -> web.StreamResponse:
            raw = await self._body(request)
            asked = read(api, raw, request.headers, caller, self._desk.number())
            turn = self._desk.admit(asked)
            try:
                return await self._served(turn, request)
            finally:
                self._desk.leave(turn)
                self._count(turn)

        return handle

    async def _served(self, turn: Turn, request: web.Request) -> web.StreamResponse:
        sending = Sending(request)
        try:
            try:
                return await self._attempts(turn, request, sending)
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001 - as in `_guarded`; here the answer may have begun
                why = _told(error, request)
            except asyncio.CancelledError:
                if turn.expelled is None:  # the client has left
                    self._tally.add("abandoned")
                    raise
                uncancel = getattr(turn.task, "uncancel", None)  # Python 3.10 has none
                if uncancel is not None:
                    uncancel()
                why = turn.expelled
            self._tally.add("refused", code=why.code)
            return await sending.refuse(why)
        except ClientGone:
            self._tally.add("abandoned")
            return sending.down or web.Response(status=499)

    async def _attempts(self, turn: Turn, request: web.Request, sending: Sending) -> web.StreamResponse:
        while True:
            await self._desk.granted(turn)
            try:
                async with self._desk.seat(turn) as seat:
                    return await self._relay.call(turn, seat, request, self._keys.needed, sending)
            except EngineFailed as failure:
                self._tally.add("engine_failures", backend=seat.place.name)
                turn.failures += not failure.dead
                if sending.started or turn.failures >= ATTEMPTS:
                    raise broken_off(failure, sending.started) from failure
                _log.warning("%s; the call of %r is sent again", failure, turn.asked.program)
                # Once may be a connection that was closed as it was used; twice is the engine.
                dead = failure.dead or turn.failed_at == seat.place.name
                turn.failed_at = seat.place.name
                self._desk.again(turn, seat.place, dead=dead)

    def _first(self, turn: Turn) -> None:
        now = asyncio.get_running_loop().time()
        self._tally.first_token.add(now - turn.arrived)
        if turn.asked.stream:
            turn.first_s = now - turn.sent

    def _count(self, turn: Turn) -> None:
        used, backend, outcome = turn.usage, turn.ticket.backend or "", "answered" if turn.usage else "failed"
        self._tally.add("requests", backend=backend, tenant=turn.asked.caller.tenant, outcome=outcome)
        if used is not None:
            self._tally.add("tokens", used.prompt, backend=backend, kind="prompt")
            self._tally.add("tokens", used.completion, backend=backend, kind="completion")
            self._tally.add("tokens", used.cached or 0, backend=backend, kind="cached")


async def going_on(request: web.Request) -> web.StreamResponse | None:
    """Tells a client that asks first to send its body."""
    if request.version < aiohttp.HttpVersion11:  # it knows no such thing
        return None
    if request.headers["Expect"].lower() != "100-continue":
        why = Refused(417, "the only expectation that is met is `Expect: 100-continue`", "expectation_failed")
        return web.json_response(why.body(), status=why.status)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # that was no answer yet
    return None


def _told(error: Exception, request: web.Request) -> Refused:
    """What the client is told about an error of ours, or of anybody's."""
    if (why := refused(error)) is None:
        _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return why or FAULT


def _models_in(reply: Reply) -> list[dict[str, Any]]:
    try:
        data = plain_json(reply.body)["data"] if reply.status == 200 else []
    except (ValueError, KeyError, TypeError):  # an engine that lists none
        return []
    if not isinstance(data, list):
        return []
    return [cast("dict[str, Any]", one) for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
