"""A provider that answers, refuses, stalls or breaks as it is told, on the virtual clock, and counts what reaches
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from agentrm import VirtualClock


class Refused(Exception):
    """What a client raises for a reply that is no success. Read by duck typing, as the real ones are."""

    def __init__(self, status: int, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.body = {"error": {"code": code, "message": code or ""}} if code else None
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


@dataclass(slots=True)
class Provider:
    """`seconds`: how long a good answer takes. `rate`: at most so many requests per so many seconds, else 429, with a
    hint if `hints`. `script`: what the next requests get instead, one each: an exception to raise, `SILENCE`, a
    number of seconds, or a function."""

    clock: VirtualClock
    seconds: float = 1.0
    rate: tuple[int, float] | None = None
    hints: bool = False
    script: list[Any] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    running: int = 0
    most: int = 0
    open_streams: int = 0

    @property
    def now(self) -> float:
        return round(self.clock.elapsed, 6)

    def _arrive(self) -> Any:
        """Counts a request. Returns what was scripted for it, None for the usual answer."""
        now = self.now
        self.seen.append(now)
        if self.rate is not None:
            many, window = self.rate
            recent = [t for t in self.seen if t > now - window and t not in self.refused]
            if len(recent) > many:
                self.refused.append(now)
                hint = recent[0] + window - now if self.hints else None
                raise Refused(429, retry_after=hint)
        return self.script.pop(0) if self.script else None

    async def answer(self, what: str = "answer") -> str:
        """One request without streaming."""
        told = self._arrive()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if isinstance(told, BaseException):
                raise told
            if told is SILENCE:
                await asyncio.get_running_loop().create_future()
            elif callable(told):
                return str(told())
            await asyncio.sleep(self.seconds if told is None else told)
        finally:
            self.running -= 1
        return what

    async def stream(
        self, chunks: int = 3, gap: float = 0.1, then: Callable[[], Any] | Any = None
    ) -> AsyncIterator[str]:
        """One streamed answer: `chunks` pieces, `gap` seconds apart; `then` is SILENCE, or an exception, for its
        end."""
        told = self._arrive()
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, dict):
            chunks, gap, then = told.get("chunks", chunks), told.get("gap", gap), told.get("then", then)
        self.running += 1
        self.open_streams += 1
        self.most = max(self.most, self.running)
        try:
            for i in range(chunks):
                await asyncio.sleep(gap)
                yield f"chunk {i} of request {len(self.seen)}"
            if then is SILENCE:
                await asyncio.get_running_loop().create_future()
            elif isinstance(then, BaseException):
                raise then
        finally:
            self.running -= 1
            self.open_streams -= 1


SILENCE = object()
