"""What do a provider's response headers say about its limits?

`read_headers` understands the families in use: `x-ratelimit-*` (OpenAI and those who follow it, GitHub,
Mistral), `anthropic-ratelimit-*`, the IETF drafts `RateLimit`, `RateLimit-Policy` and
`RateLimit-{Limit,Remaining,Reset}` (draft-ietf-httpapi-ratelimit-headers), `retry-after` (RFC 9110, 10.2.3),
`retry-after-ms` and `x-should-retry`.

Headers come from a stranger. Whatever stands in them, nothing here raises: a value that can't be read is
None, a wait beyond a day is cut to a day, and the names of both kinds are in `suspect`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["MAX_WAIT_S", "NO_HEADERS", "Delay", "HeaderLimits", "RateWindow", "read_delay", "read_headers"]

MAX_WAIT_S = 86_400.0
"""The longest wait believed, in seconds. What is longer is cut to it and called suspect."""

_MAX_COUNT = 2**53  # beyond it a count is no count, and the kernel's words could not hold it
_MAX_TEXT = 1_000  # characters of a header value that are looked at
_EPOCH_S = 1e9  # a number from here on is an instant (2001): as a wait it would be 31 years
_EPOCH_MS = 1e11  # and from here on one in milliseconds (1973): in seconds it would be the year 5138

_NUMBER = re.compile(
    r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?|[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE
)
_COUNT = re.compile(r"\s*(\d+)(?:\.0*)?\s*(?:[;,].*)?")
_PART = re.compile(
    r"(\d+(?:\.\d+)?|\.\d+)\s*(milliseconds?|millis|msecs?|ms|microseconds?|us|µs|nanoseconds?|ns"
    r"|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])[\s,]*(?:and\s+)?",
    re.IGNORECASE,
)
_GO_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|ms|s|m|h|d)", re.IGNORECASE)  # "1h2m3.5s" has no gaps
_UNIT_S = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?\s*([Zz]|[+-]\d\d:?\d\d)?")

_FAMILY = re.compile(r"(?:x-|anthropic-)?rate-?limit-(.+)")
_RESOURCES = {
    "": "requests", "requests": "requests", "request": "requests", "req": "requests",
    "tokens": "tokens", "token": "tokens",
    "input-tokens": "input_tokens", "tokens-prompt": "input_tokens", "prompt-tokens": "input_tokens",
    "output-tokens": "output_tokens", "tokens-generated": "output_tokens",
    "completion-tokens": "output_tokens",
}  # fmt: skip
_WINDOWS = ("", "second", "minute", "hour", "day")  # where several are told, the first of these that is


@dataclass(frozen=True, slots=True)
class Delay:
    """A wait read from a text: `seconds` from now, None if unreadable; `suspect` if so or if cut to a day."""

    seconds: float | None
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class RateWindow:
    """One limit as the provider sees it, in requests or tokens; `reset_s` is seconds from now, at least 0.

    For OpenAI `reset_s` is the time until the whole limit is free again, not until the next unit is.
    """

    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None

    def __bool__(self) -> bool:
        return self.limit is not None or self.remaining is not None or self.reset_s is not None


_UNKNOWN = RateWindow()


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """All that one response says about limits. False if it says nothing.

    `retry_after_s` is in seconds from now, 0 to `MAX_WAIT_S`; 0.0 means that the time has passed already.
    `should_retry` is the server's own verdict where it gives one. `suspect` names the headers that could not
    be read or were cut.
    """

    requests: RateWindow = _UNKNOWN
    tokens: RateWindow = _UNKNOWN
    input_tokens: RateWindow = _UNKNOWN
    output_tokens: RateWindow = _UNKNOWN
    retry_after_s: float | None = None
    should_retry: bool | None = None
    suspect: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requests or self.tokens or self.input_tokens or self.output_tokens) or not (
            self.retry_after_s is None and self.should_retry is None
        )

    @property
    def exhausted_s(self) -> float | None:
        """Seconds until every limit with nothing left is reset; None if none is empty or none says when."""
        resets = [
            window.reset_s
            for window in (self.requests, self.tokens, self.input_tokens, self.output_tokens)
            if window.remaining == 0 and window.reset_s is not None
        ]
        return max(resets) if resets else None


NO_HEADERS = HeaderLimits()


def read_headers(headers: object, *, wall: float | None = None) -> HeaderLimits:
    """Read the limits out of `headers`: a mapping, an httpx-like object or pairs, str or bytes. Never raises.

    Instants (HTTP dates, RFC 3339, epoch) are turned into waits by the response's own `date` header, so that
    a wrong local clock does no harm; without one by `wall`, the local time in seconds since the epoch;
    without either they are unreadable.
    """
    texts = _lowered(headers)
    if not texts:
        return NO_HEADERS
    sent = _instant(texts.get("date", ""))
    now = wall if sent is None else sent
    suspect: list[str] = []
    windows = _windows(texts, now, suspect)
    return HeaderLimits(
        **windows,
        retry_after_s=_retry_after(texts, now, suspect),
        should_retry={"true": True, "false": False}.get(texts.get("x-should-retry", "").lower()),
        suspect=tuple(suspect),
    )


def read_delay(text: str, now: float | None) -> Delay:
    """Read a wait: "20", "6m0s", "20ms", "1h2m3.5s", "20 seconds", epoch (s or ms), RFC 3339 or HTTP date.

    `now` is the wall time in seconds that instants are measured from; one in the past is a wait of 0.
    """
    text = text.strip().strip('"')
    if _NUMBER.fullmatch(text):
        number = float(text)
        if math.isnan(number) or number < 0:
            return Delay(None, True)
        if number < _EPOCH_S or math.isinf(number):
            return _bounded(number)
        if now is None:
            return Delay(None, True)
        return _bounded(max(0.0, (number / 1000 if number >= _EPOCH_MS else number) - now))
    seconds = _duration(text)
    if seconds is not None:
        return _bounded(seconds)
    instant = _instant(text)
    if instant is None or now is None:
        return Delay(None, True)
    return _bounded(max(0.0, instant - now))


def _bounded(seconds: float) -> Delay:
    return Delay(min(seconds, MAX_WAIT_S), seconds > MAX_WAIT_S)


def _duration(text: str) -> float | None:
    """ "1m30s", "1 minute 30 seconds"; None if anything else stands in the text."""
    for pattern in (_GO_PART, _PART):
        total, position = 0.0, 0
        while position < len(text):
            match = pattern.match(text, position)
            if match is None:
                break
            total += float(match[1]) * _unit(match[2].lower())
            position = match.end()
        if text and position == len(text):
            return total
    return None


def _unit(name: str) -> float:
    known = _UNIT_S.get(name)
    if known is not None:
        return known
    for prefix, unit in (("milli", "ms"), ("msec", "ms"), ("micro", "us"), ("nano", "ns")):
        if name.startswith(prefix):
            return _UNIT_S[unit]
    return _UNIT_S[name[0]]  # second, sec, minute, min, hour, hr, day


def _instant(text: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time or an HTTP date; without a zone it is UTC."""
    match = _RFC3339.fullmatch(text.strip())
    try:
        if match is not None:
            day, clock, fraction, zone = match.groups()
            offset = f"{zone[:3]}:{zone[-2:]}" if zone and zone not in "Zz" else "+00:00"
            moment = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '').ljust(6, '0')}{offset}")
        else:
            moment = parsedate_to_datetime(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=timezone.utc)
        return moment.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # parsedate_to_datetime raises each of them
        return None


def _count(text: str) -> int | None:
    """The first number of "100", "100.0", "100, 100;w=60"."""
    match = _COUNT.fullmatch(text)
    if match is None or len(match[1]) > 20:
        return None
    value = int(match[1])
    return value if value <= _MAX_COUNT else None


def _retry_after(texts: Mapping[str, str], now: float | None, suspect: list[str]) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "retry-after"):
        text = texts.get(name)
        if text is None:
            continue
        in_ms = name.endswith("-ms") and _NUMBER.fullmatch(text.strip()) is not None
        delay = read_delay(repr(float(text) / 1000) if in_ms else text, now)
        if delay.suspect:
            suspect.append(name)
        if delay.seconds is not None:
            return delay.seconds
    return None


def _windows(texts: Mapping[str, str], now: float | None, suspect: list[str]) -> dict[str, RateWindow]:
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for name, text in texts.items():
        place = _place(name)
        if place is None:
            continue
        resource, window, field = place
        value: float | int | None
        if field == "reset":
            delay = read_delay(text, now)
            value, doubt = delay.seconds, delay.suspect
        else:
            value = _count(text)
            doubt = value is None
        if doubt:
            suspect.append(name)
        if value is not None:
            cell = cells.setdefault(resource, {}).setdefault(window, {})
            cell["reset_s" if field == "reset" else field] = value
    told = _structured(texts, suspect)
    if told is not None:
        cells.setdefault("requests", {}).setdefault("", told)
    return {resource: _tightest(by_window) for resource, by_window in cells.items()}


def _place(name: str) -> tuple[str, str, str] | None:
    """ "x-ratelimit-remaining-tokens-minute" -> ("tokens", "minute", "remaining")."""
    match = _FAMILY.fullmatch(name)
    if match is None:
        return None
    words = match[1].split("-")
    field = next((word for word in words if word in ("limit", "remaining", "reset")), None)
    if field is None:
        return None
    words.remove(field)
    window = words.pop() if words and words[-1] in _WINDOWS else ""
    resource = _RESOURCES.get("-".join(words))
    return None if resource is None else (resource, window, field)


def _tightest(by_window: Mapping[str, Mapping[str, Any]]) -> RateWindow:
    """Of several windows of one resource the empty one that lasts longest, else the shortest."""
    windows = [RateWindow(**by_window[name]) for name in _WINDOWS if name in by_window]
    empty = [window for window in windows if window.remaining == 0]
    return max(empty, key=lambda window: window.reset_s or 0.0) if empty else windows[0]


_LIST_ITEM = re.compile(r'(?:[^,"]|"[^"]*")+')
_PARAMETER = re.compile(r'([a-z]+)\s*=\s*(?:"([^"]*)"|([^;,\s]+))')


def _parameters(text: str) -> dict[str, str]:
    return {key: quoted or plain for key, quoted, plain in _PARAMETER.findall(text)}


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    """`"name";q=1;w=2, other;q=3` -> names with their parameters."""
    return [(item.split(";")[0].strip(' "'), _parameters(item)) for item in _LIST_ITEM.findall(text)]


def _structured(texts: Mapping[str, str], suspect: list[str]) -> dict[str, Any] | None:
    """The drafts' one-line forms: `limit=100, remaining=50, reset=5` (7), `"name";r=50;t=5` (8 and later)."""
    text = texts.get("ratelimit")
    if text is None:
        return None
    told = _parameters(text)
    if "r" in told:
        policies = dict(_items(texts.get("ratelimit-policy", "")))
        items = [(item, policies.get(name, {})) for name, item in _items(text)]
        counted = [
            {"limit": policy.get("q", ""), "remaining": item["r"], "reset": item.get("t", "")}
            for item, policy in items
            if _count(item.get("r", "")) is not None and policy.get("qu", "requests") == "requests"
        ]
        told = min(counted, key=lambda item: _count(item["remaining"]) or 0, default={})
    reset = _count(told.get("reset", ""))
    cell = {
        "limit": _count(told.get("limit", "")),
        "remaining": _count(told.get("remaining", "")),
        "reset_s": None if reset is None else min(float(reset), MAX_WAIT_S),
    }
    if all(value is None for value in cell.values()):
        suspect.append("ratelimit")
        return None
    return cell


def _lowered(headers: object) -> dict[str, str]:
    """Names in lower case, values as text. The first of repeated ones counts."""
    try:
        source: Any = headers.items() if hasattr(headers, "items") else headers or ()
        pairs = list(source)
    except Exception:  # noqa: BLE001 - an object of a stranger: whatever it raises, it has no headers for us
        return {}
    texts: dict[str, str] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            continue
        name, value = (part.decode("latin-1") if isinstance(part, bytes) else part for part in pair)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, (int, float)):
            value = repr(float(value)) if abs(value) <= _MAX_COUNT else "inf"
        if isinstance(name, str) and isinstance(value, str):
            texts.setdefault(name.lower(), value[:_MAX_TEXT])
    return texts
