"""A model provider in this process that does what a test tells it: answer, refuse, hang, stream, stall.

The harness of an adapter makes a model of its framework whose calls end in `call`, `acall`, `stream` or `astream` here.
It counts what is open, so a test sees what an endpoint would see; nothing depends on time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Hang", "Provider", "Refusal", "Refuse", "Reply"]

PATIENCE_S = 20.0
"""How long a test waits for what must happen before it says that it did not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in chunks; `usage` is (input, output) tokens or None for none reported. `holds`: opens, and answers (a
    stream: its last chunk) only after `release`."""

    chunks: tuple[str, ...] = ("one ", "two ", "three")
    usage: tuple[int, int] | None = (11, 7)
    holds: bool = False

    @property
    def text(self) -> str:
        return "".join(self.chunks)


@dataclass(frozen=True, slots=True)
class Refuse:
    """An HTTP error, before the first chunk. `code` is what the body says."""

    status: int = 429
    retry_after: float | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Silence after that many chunks, until the caller goes away or the provider is released."""

    after: int = 0


class Refusal(Exception):
    """Looks like the error of a client: a status, a response with headers, a body."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__(f"the stub answered {refuse.status}")
        headers = {} if refuse.retry_after is None else {"retry-after": str(refuse.retry_after)}
        self.status_code = refuse.status
        self.body = {} if refuse.code is None else {"error": {"code": refuse.code, "type": refuse.code}}
        self.response = _Response(refuse.status, headers)


@dataclass(frozen=True, slots=True)
class _Response:
    status_code: int
    headers: dict[str, str]


class Provider:
    """Answers with `plan`, in order, then with `Reply()` for ever.

    `calls`: requests so far; `open`: those at work now, `peak`: most at once; `abandoned`: streams closed before their
    end; `seen`: what `probe` returned at each request, taken inside the call.
    """

    def __init__(self, *plan: Reply | Refuse | Hang, probe: Any = None) -> None:
        self._plan = deque(plan)
        self._probe = probe
        self._changed = threading.Condition()
        self._released = threading.Event()
        self.calls = self.open = self.peak = self.abandoned = 0
        self.seen: list[Any] = []

    def release(self) -> None:
        """Lets everything go on that holds or hangs, now and later."""
        self._released.set()
        with self._changed:
            self._changed.notify_all()

    def wait_open(self, number: int) -> None:
        """Until that many requests are at work; AssertionError if that never happens."""
        self._wait(lambda: self.open >= number, f"{number} open requests")

    def wait_calls(self, number: int, meanwhile: Callable[[], object]) -> None:
        """Until there were that many requests; does `meanwhile` (moves a clock) again and again."""
        with self._changed:
            for _ in range(int(PATIENCE_S / 0.01)):
                if self._changed.wait_for(lambda: self.calls >= number, 0.01):
                    return
                meanwhile()
        raise AssertionError(f"the provider never saw {number} requests, only {self.calls}")

    def wait_closed(self) -> None:
        """Until nothing is at work."""
        self._wait(lambda: self.open == 0, "no open request")

    def _wait(self, true: Any, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(true, PATIENCE_S):
                raise AssertionError(f"the provider never saw {what}: {self.calls} requests, {self.open} open")

    @contextmanager
    def _request(self) -> Iterator[Reply | Refuse | Hang]:
        with self._changed:
            self.calls += 1
            self.open += 1
            self.peak = max(self.peak, self.open)
            step = self._plan.popleft() if self._plan else Reply()
            if self._probe is not None:
                self.seen.append(self._probe())
            self._changed.notify_all()
        try:
            if isinstance(step, Refuse):
                raise Refusal(step)
            yield step
        finally:
            with self._changed:
                self.open -= 1
                self._changed.notify_all()

    def call(self) -> Reply:
        with self._request() as step:
            if isinstance(step, Hang) or (isinstance(step, Reply) and step.holds):
                self._released.wait(PATIENCE_S)
            return step if isinstance(step, Reply) else Reply(("late",))

    async def acall(self) -> Reply:
        with self._request() as step:
            if isinstance(step, Hang) or (isinstance(step, Reply) and step.holds):
                await self._until_released()
            return step if isinstance(step, Reply) else Reply(("late",))

    def stream(self) -> Iterator[tuple[str, tuple[int, int] | None]]:
        """Chunks of (text, usage); the usage comes with the last one."""
        with self._request() as step, self._abandonment() as done:
            for text, usage, waits in self._chunks(step):
                if waits:
                    self._released.wait(PATIENCE_S)
                yield text, usage
            done.append(True)

    async def astream(self) -> AsyncIterator[tuple[str, tuple[int, int] | None]]:
        with self._request() as step, self._abandonment() as done:
            for text, usage, waits in self._chunks(step):
                if waits:
                    await self._until_released()
                yield text, usage
            done.append(True)

    def _chunks(self, step: Any) -> Iterator[tuple[str, tuple[int, int] | None, bool]]:
        reply = step if isinstance(step, Reply) else Reply()
        last = len(reply.chunks) - 1
        for i, text in enumerate(reply.chunks):
            waits = step.after == i if isinstance(step, Hang) else reply.holds and i == last
            yield text, reply.usage if i == last else None, waits

    @contextmanager
    def _abandonment(self) -> Iterator[list[bool]]:
        done: list[bool] = []
        try:
            yield done
        finally:
            if not done:
                with self._changed:
                    self.abandoned += 1
                    self._changed.notify_all()

    async def _until_released(self) -> None:
        """Without a thread: a cancelled request must end at once."""
        while not self._released.is_set():  # noqa: ASYNC110 - released from any thread
            await asyncio.sleep(0.001)
