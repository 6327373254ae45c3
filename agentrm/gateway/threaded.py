"""A gateway in a thread of its own, for programs that have no event loop, notebooks and examples."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from agentrm.config import Config
from agentrm.gateway.server import Gateway

__all__ = ["GatewayThread"]


class GatewayThread:
    """`with GatewayThread(config) as gateway: ... gateway.url`. It listens from the beginning of the block to its end.

    Raises what `Gateway` raises.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="agentrm-gateway", daemon=True)
        self.url = ""

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as crash:  # noqa: BLE001 - raised again in the thread that waits for it
            self._crash = crash
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Gateway(self._config) as gateway:
            self.url = gateway.url
            self._started.set()
            await self._stop.wait()

    def __enter__(self) -> GatewayThread:
        self._thread.start()
        self._started.wait()
        if self._crash is not None:
            raise self._crash
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._crash is not None and exc is None:
            raise self._crash
