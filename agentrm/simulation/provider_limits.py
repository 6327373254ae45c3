"""Which requests does the stub provider turn away with 429, and what does it tell the client?

Limits are exact in every rolling window. Each refusal names the time at which the same request would pass.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Literal

__all__ = ["Entry", "Hint", "Limit", "Refusal", "Windows", "hint_headers"]

Hint = Literal["retry-after", "retry-after-ms", "retry-after-date", "x-ratelimit", "text"]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `requests` and `tokens` in any `per_s` seconds, for each model or for the account as a whole.

    A request counts its prompt and its `max_tokens` when it comes and what it really used when it has ended.
    """

    requests: int | None = None
    tokens: int | None = None
    per_s: float = 60.0
    scope: Literal["account", "model"] = "account"


@dataclass(slots=True)
class Entry:
    """What one admitted request takes from the windows; `tokens` is corrected when it ends."""

    at_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was turned away. `retry_after_s` is infinite if it can never pass."""

    resource: Literal["requests", "tokens"]
    limit: int
    used: int
    asked: int
    per_s: float
    retry_after_s: float


class _Window:
    """One limit of one scope."""

    __slots__ = ("entries", "limit")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.entries: deque[Entry] = deque()

    def expire(self, now: float) -> None:
        while self.entries and self.entries[0].at_s + self.limit.per_s <= now:
            self.entries.popleft()

    @property
    def tokens_used(self) -> int:
        return sum(entry.tokens for entry in self.entries)

    def refusals(self, now: float, tokens: int) -> list[Refusal]:
        """One for each resource that this request would exceed."""
        limit, found = self.limit, []
        if limit.requests is not None:
            wait = self._wait(now, [1] * len(self.entries), 1 - limit.requests)
            if wait > 0:
                found.append(Refusal("requests", limit.requests, len(self.entries), 1, limit.per_s, wait))
        if limit.tokens is not None:
            wait = self._wait(now, [entry.tokens for entry in self.entries], tokens - limit.tokens)
            if wait > 0:
                found.append(Refusal("tokens", limit.tokens, self.tokens_used, tokens, limit.per_s, wait))
        return found

    def _wait(self, now: float, taken: list[int], over: int) -> float:
        """Seconds until so many entries have left that `over` plus what is taken is not above zero."""
        excess = sum(taken) + over
        if excess <= 0:
            return 0.0
        for entry, amount in zip(self.entries, taken, strict=True):
            excess -= amount
            if excess <= 0:
                return entry.at_s + self.limit.per_s - now
        return math.inf


class Windows:
    """The limits of a provider: `admit` takes from all that apply or from none."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        self._limits = tuple(limits)
        self._windows: dict[tuple[int, str | None], _Window] = {}

    def admit(self, now: float, model: str, tokens: int) -> Entry | Refusal:
        """An entry to correct later, or the refusal with the longest wait."""
        windows = self._of(model, now)
        refusals = [refusal for window in windows for refusal in window.refusals(now, tokens)]
        if refusals:
            return max(refusals, key=lambda refusal: refusal.retry_after_s)
        entry = Entry(now, tokens)
        for window in windows:
            window.entries.append(entry)
        return entry

    def headers(self, now: float, model: str) -> list[tuple[str, str]]:
        """`x-ratelimit-*` as OpenAI sends them: of each resource the limit with the least left."""
        told: dict[str, tuple[float, int, int, float]] = {}
        for window in self._of(model, now):
            limit = window.limit
            oldest = window.entries[0].at_s if window.entries else now - limit.per_s
            reset = oldest + limit.per_s - now
            for resource, most, used in (
                ("requests", limit.requests, len(window.entries)),
                ("tokens", limit.tokens, window.tokens_used),
            ):
                if most is not None:
                    left = max(0, most - used)
                    told[resource] = min(
                        told.get(resource, (math.inf, 0, 0, 0.0)), (left / max(1, most), left, most, reset)
                    )
        headers = []
        for resource, (_, left, most, reset) in told.items():
            headers += [
                (f"x-ratelimit-limit-{resource}", str(most)),
                (f"x-ratelimit-remaining-{resource}", str(left)),
                (f"x-ratelimit-reset-{resource}", duration(reset)),
            ]
        return headers

    def _of(self, model: str, now: float) -> list[_Window]:
        found = []
        for number, limit in enumerate(self._limits):
            key = (number, model if limit.scope == "model" else None)
            window = self._windows.setdefault(key, _Window(limit))
            window.expire(now)
            found.append(window)
        return found


def hint_headers(hints: Iterable[Hint], retry_after_s: float, wall: float) -> list[tuple[str, str]]:
    """The hint as headers. It is rounded up: a client that obeys it is never too early."""
    headers = []
    for hint in hints:
        if hint == "retry-after":
            headers.append(
                ("retry-after", f"{math.ceil(retry_after_s * 1000) / 1000:.3f}".rstrip("0").rstrip("."))
            )
        elif hint == "retry-after-ms":
            headers.append(("retry-after-ms", str(math.ceil(retry_after_s * 1000))))
        elif hint == "retry-after-date":
            headers.append(("retry-after", formatdate(math.ceil(wall + retry_after_s), usegmt=True)))
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: "6m0s", "1.5s", "20ms"."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    text = f"{math.ceil(rest * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{text}s" if minutes else f"{text}s"
