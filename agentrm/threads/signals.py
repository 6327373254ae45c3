"""A thread tells a coroutine that something is over."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """Set once from any thread, awaited on the loop where it was made. Setting it when that loop is closed
    does nothing: whoever waited went with the loop."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:
            return

    async def wait(self) -> None:
        await self.future

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
