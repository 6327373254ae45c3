"""What a backend is: signals, capabilities, and the few verbs that the scheduler and the gateway use.

Everything that an engine does not tell is None, never 0: a missing number is unknown, and an unknown capacity bounds
nothing instead of refusing everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

__all__ = [
    "MOST_TOKENS",
    "UNKNOWN",
    "Backend",
    "Capabilities",
    "Reply",
    "Settings",
    "Signals",
    "Transport",
    "TransportError",
    "Usage",
]


MOST_TOKENS = 1_000_000_000
"""Of one request or reply. What says more than that is not believed."""
MOST_CAPACITY = 10**15
"""Tokens of an engine's memory: far above any real one."""


class TransportError(Exception):
    """The engine could not be reached, or did not answer."""


class Reply(NamedTuple):
    """An engine's answer to a request of ours."""

    status: int
    body: bytes


class Transport(Protocol):
    """How a backend reaches its engine. Each call raises TransportError where there is no answer."""

    async def request(
        self, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Reply:
        """Sends one request; `path` starts with a slash and is below the engine's root."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What an engine says of itself now. None: it does not say.

    `running`, `waiting`: requests. `kv_used`: share of the KV memory in use, 0 to 1. `capacity`: tokens that the KV
    memory holds, of all engines behind the address together. `block`: tokens of one block of it, which belongs to one
    sequence as a whole (the largest, where they differ). `hit_tokens`, `query_tokens`: prompt tokens found in the
    prefix cache and looked up in it, since the engine started. `preempted`: requests thrown back so far.
    `engines`: how many engines answer behind the address (data parallel).
    """

    healthy: bool
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    capacity: int | None = None
    hit_tokens: int | None = None
    query_tokens: int | None = None
    preempted: int | None = None
    engines: int | None = None
    block: int | None = None


def believable(said: Signals) -> Signals:
    """The same without what cannot be, which is unknown then: negative counts, shares beyond 1, a memory of no tokens
    or of more than there are."""

    def count(value: int | None, least: int = 0) -> int | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and value is not None and least <= value <= MOST_CAPACITY else None

    used = said.kv_used
    return Signals(
        healthy=said.healthy,
        running=count(said.running),
        waiting=count(said.waiting),
        kv_used=used if used is not None and 0 <= used <= 1 else None,
        capacity=count(said.capacity, 1),
        hit_tokens=count(said.hit_tokens),
        query_tokens=count(said.query_tokens),
        preempted=count(said.preempted),
        engines=count(said.engines, 1),
        block=count(said.block, 1),
    )


UNKNOWN = Signals(healthy=False)
"""What is known of an engine that does not answer."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can be asked to do for one program.

    `priority`: which way its numbers run, None if it takes none. `abort`: stops a request by its id (closing the
    connection stops it everywhere). `swap`: writes one program's KV out and reads it back. `pin`: keeps tokens from
    being evicted. `hold`: keeps a session's KV between its turns. `flush`: empties the prefix cache.
    """

    priority: Literal["low-first", "high-first"] | None = None
    abort: bool = False
    swap: bool = False
    pin: bool = False
    hold: bool = False
    flush: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What has to be said about an engine because it can't be asked. `priority`: it schedules by priority.
    `admin`: its administrative endpoints are on. `swap_dir`: the folder in which it saves slots, as this process sees
    it; engines with one folder can take over each other's programs."""

    priority: bool = False
    admin: bool = False
    swap_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply. `cached`: prompt tokens that needed no prefill, None if the engine does not say."""

    prompt: int
    completion: int
    cached: int | None = None


class Backend:
    """One engine behind one address. The base is an engine of which nothing is known but that it speaks OpenAI's
    protocol; the kinds override what they know better.

    Not thread-safe: all calls come from one event loop.
    """

    def __init__(self, name: str, transport: Transport, settings: Settings | None = None) -> None:
        self.name, self.transport, self.settings = name, transport, settings or Settings()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def signals(self) -> Signals:
        """What the engine says now. Raises TransportError if it does not answer."""
        reply = await self.transport.request("GET", "/v1/models")
        return Signals(healthy=reply.status < 500)

    async def open(self, program: str, priority: int) -> Mapping[str, Any]:
        """Makes ready for one call of the program and returns the fields to be added to its body. `priority`: 0 for
        what a person waits for, growing with what can wait longer. Each `open` is followed by one `close`, unless it
        raised or was cancelled."""
        return {}

    def close(self, program: str, fields: Mapping[str, Any]) -> None:
        """The call is over, however it ended. `fields`: what its `open` gave."""

    async def pause(self, program: str) -> bool:
        """The program will not run here soon: writes its KV out where that can be done. Whether it is saved."""
        return False

    async def forget(self, program: str) -> None:
        """The program ended, or goes on elsewhere for good: whatever is kept for it is let go."""

    async def abort(self, request: str) -> bool:
        """Stops the request of that id. Whether the engine took the order."""
        return False

    async def flush(self) -> bool:
        """Empties the prefix cache. Whether it was done."""
        return False

    def clean(self, idle_s: float) -> int:
        """Removes what was kept for programs that did not come back for `idle_s` seconds. How many there were."""
        return 0

    def reset(self) -> None:
        """The engine was down: nothing that it kept is taken for granted."""

    def usage(self, reply: Mapping[str, Any]) -> Usage | None:
        """The tokens of a reply (a whole one, or the last frame of a stream); None if it does not say."""
        return openai_usage(reply)


def openai_usage(reply: Mapping[str, Any]) -> Usage | None:
    """Reads `usage` of chat completions, completions and responses."""
    used = reply.get("usage")
    if not isinstance(used, Mapping):
        return None
    prompt = _count(used, "prompt_tokens", "input_tokens")
    completion = _count(used, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    details = used.get("prompt_tokens_details") or used.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, Mapping) else None
    return Usage(prompt or 0, completion or 0, cached)


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS:
            return value
    return None
