"""A model provider on 127.0.0.1 that speaks OpenAI's chat protocol and misbehaves on request.

    with StubProvider(Behaviour(service_s=0.02), limits=[Limit(requests=3, per_s=1)]) as provider:
        client = openai.OpenAI(base_url=provider.base_url, api_key="any")
        ...
        assert provider.peak_concurrency <= 4

It runs in a thread of its own on uvicorn (extra `demo`), answers `/v1/chat/completions` and
`/v1/models`, and keeps a record of each request. Which answer a request gets depends on the seed and the
order of arrival alone.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentrm.errors import AgentRMError
from agentrm.simulation.provider_app import StubApp
from agentrm.simulation.provider_behaviour import (
    Behaviour,
    BehaviourSource,
    Mix,
    Outcome,
    StubRequest,
    ToolCall,
    chooser,
)
from agentrm.simulation.provider_exchange import AGENT_HEADER
from agentrm.simulation.provider_limits import Hint, Limit, Windows
from agentrm.simulation.provider_log import ProviderStatistics, RequestLog, RequestRecord
from agentrm.simulation.provider_wire import pair_fault

if TYPE_CHECKING:
    import uvicorn

__all__ = [
    "AGENT_HEADER",
    "Behaviour",
    "Limit",
    "Mix",
    "Outcome",
    "ProviderStatistics",
    "RequestRecord",
    "SimulationError",
    "StubProvider",
    "StubRequest",
    "ToolCall",
    "pair_fault",
]

_STOP_LIMIT_S = 10.0


class SimulationError(AgentRMError):
    """The stub provider cannot run, or the script that it follows failed."""


class StubProvider:
    """A provider that answers by a plan and remembers what it was asked.

    `behaviour`: one `Behaviour`, a list in order of arrival, a `Mix` drawn by `seed`, a function of the
    request.
    `limits`: exceeded ones are answered with 429; `hints` says how a wait is told: any of "retry-after"
    (seconds, with decimals), "retry-after-date", "retry-after-ms", "x-ratelimit" (on every answer) and
    "text".
    `slots`: how many requests are worked on at once, the others wait inside in order of arrival; None:
    no bound.
    `strict_pairs`: refuse messages in which tool calls and results don't pair (400).
    `api_key`: the only key that is accepted (401); None accepts any.
    `time_scale`: real seconds per second of a behaviour or limit; 0.01 runs a hundred times as fast.

    `start` and `stop` may be called from any thread, once each; the object is a context manager of both.
    """

    def __init__(
        self,
        behaviour: BehaviourSource = Behaviour(),  # noqa: B008 - frozen
        *,
        seed: int = 0,
        limits: Iterable[Limit] = (),
        hints: Sequence[Hint] = ("retry-after",),
        slots: int | None = None,
        strict_pairs: bool = False,
        api_key: str | None = None,
        models: Sequence[str] = ("stub",),
        time_scale: float = 1.0,
    ) -> None:
        if time_scale < 0 or (slots is not None and slots < 1):
            raise ValueError(
                f"time_scale={time_scale} must not be negative, slots={slots} must be at least 1"
            )
        self._log = RequestLog()
        self._make_app: Callable[[], StubApp] = lambda: StubApp(
            choose=chooser(behaviour, seed),
            log=self._log,
            windows=Windows(replace(limit, per_s=limit.per_s * time_scale) for limit in limits),
            hints=hints,
            seed=seed,
            slots=slots,
            strict_pairs=strict_pairs,
            api_key=api_key,
            models=models,
            time_scale=time_scale,
        )
        self._thread: threading.Thread | None = None
        self._server: _Running | None = None

    def start(self) -> StubProvider:
        """Listen on a free port of 127.0.0.1. When it returns, requests are taken."""
        if self._thread is not None:
            raise SimulationError("a StubProvider starts once; make a new one")
        self._server = _Running(self._make_app, socket.create_server(("127.0.0.1", 0), backlog=2048))
        self._thread = threading.Thread(target=self._server.run, name="agentrm-stub-provider", daemon=True)
        self._thread.start()
        self._server.wait_started()
        return self

    def stop(self) -> None:
        """Cut every connection and end the thread. Raises SimulationError if the script failed meanwhile."""
        if self._thread is None or self._server is None:
            raise SimulationError("the StubProvider was not started")
        self._server.stop()
        self._thread.join(_STOP_LIMIT_S)
        if self._thread.is_alive():
            raise SimulationError(f"the StubProvider did not stop within {_STOP_LIMIT_S:g} s")
        if self._server.failure is not None:
            raise SimulationError(
                f"the stub provider failed: {self._server.failure!r}"
            ) from self._server.failure

    def __enter__(self) -> StubProvider:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        if self._server is None:
            raise SimulationError("the StubProvider was not started")
        return f"http://127.0.0.1:{self._server.port}/v1"

    @property
    def log(self) -> tuple[RequestRecord, ...]:
        """The requests that have ended, in order of arrival."""
        return self._log.records

    @property
    def concurrency(self) -> tuple[tuple[float, int], ...]:
        """(second since the start, requests in progress from then on), in order of time."""
        return self._log.concurrency

    @property
    def open_requests(self) -> int:
        """Requests in progress now."""
        return self._log.open_requests

    @property
    def peak_concurrency(self) -> int:
        """The most requests that were in progress at once. Refused ones don't count."""
        return self._log.statistics().peak_concurrency

    def statistics(self) -> ProviderStatistics:
        """Counts since the start."""
        return self._log.statistics()

    def wait_until(self, condition: Callable[[ProviderStatistics], bool], timeout: float = 10.0) -> bool:
        """Block until the condition holds, for at most `timeout` seconds; whether it does. Does not poll."""
        return self._log.wait_until(condition, timeout)


class _Running:
    """The server's thread: an event loop with uvicorn in it."""

    def __init__(self, make_app: Callable[[], StubApp], listening: socket.socket) -> None:
        try:
            import uvicorn
        except ImportError as missing:
            raise SimulationError("StubProvider needs uvicorn: pip install 'agentrm[demo]'") from missing
        self._uvicorn = uvicorn
        self._make_app, self._socket = make_app, listening
        self.port: int = listening.getsockname()[1]
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._app: StubApp | None = None
        self._crash: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        return self._crash or (self._app.failure if self._app is not None else None)

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as crash:  # noqa: BLE001 - raised again by stop()
            self._crash = crash
        finally:
            self._started.set()

    def wait_started(self) -> None:
        self._started.wait()
        if self._crash is not None:
            raise SimulationError(f"the stub provider failed: {self._crash!r}") from self._crash

    def stop(self) -> None:
        loop, event = self._loop, self._stop
        if loop is not None and event is not None and not loop.is_closed():
            loop.call_soon_threadsafe(event.set)

    async def _serve(self) -> None:
        app, stop = self._make_app(), asyncio.Event()
        self._app, self._loop, self._stop = app, asyncio.get_running_loop(), stop
        server = _server(self._uvicorn, app, self._started, stop)
        app.abort = lambda client: _cut(server, lambda connection: connection.client == client)
        await server.serve(sockets=[self._socket])


def _server(
    uvicorn_module: Any, app: StubApp, started: threading.Event, stop: asyncio.Event
) -> uvicorn.Server:
    """A uvicorn server that ends by an event: the original looks at a flag ten times a second."""

    class Server(uvicorn_module.Server):  # type: ignore[misc]
        async def main_loop(self) -> None:
            started.set()
            await stop.wait()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for listening in self.servers:
                listening.close()
            await app.stop()
            _cut(self, lambda connection: True)

    config = uvicorn_module.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        backlog=2048,
    )
    server: uvicorn.Server = Server(config)
    return server


def _cut(server: Any, which: Callable[[Any], bool]) -> None:
    for connection in list(server.server_state.connections):
        if which(connection) and connection.transport is not None:
            connection.transport.abort()
