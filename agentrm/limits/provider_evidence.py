"""What does an exception of a model client say about the answer it stands for?

Clients differ in where they put things, so this reads by shape, never by class: openai, anthropic and their
descendants (`status_code`, `body`, `response`), httpx, requests, urllib, aiohttp (`status`, `headers`),
google-genai and google.api_core (`code`, `details`, `retry_delay`), gRPC (`code()`, `details()`,
`trailing_metadata()`), botocore (`response` is a dict). What it means is decided in `provider_errors`.

Only what is in memory already is looked at: a body that has not been received is never waited for.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agentrm.limits.headers import Delay, HeaderLimits, read_delay, read_headers

__all__ = ["Evidence", "attribute", "collect", "redacted"]

_MAX_TEXT = 4_000  # characters of an error's text that are looked at
_MAX_MESSAGE = 500
_MAX_BODY = 65_536
_MAX_NODES = 64  # parts of a body that are looked at

_CODE_KEYS = ("code", "type", "status", "reason", "error_code", "errorCode", "Code", "__type", "quotaId")
_TEXT_KEYS = ("message", "Message", "error_description", "detail", "description")
_NESTED_KEYS = ("error", "errors", "Error", "details", "detail", "violations", "metadata")
_WAIT_KEYS = (
    "retry_after", "retryAfter", "retry_after_s", "retry_after_seconds", "retryDelay", "retry_delay",
    "resets_in_seconds",
)  # fmt: skip
_WAIT_MS_KEYS = ("retry_after_ms", "retryAfterMs")

_UNIT = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
_TEXT_WAIT = re.compile(
    rf"""(?:try(?:ing)?\s+again|retry(?:ing)?|wait)
        (?:\s+(?:your\s+request|the\s+request|again|at\s+least|in|after|for|about|approximately))*
        \s+(?P<words>(?:\d+(?:\.\d+)?\s*{_UNIT}[\s,]*(?:and\s+)?)+)
    | retry[-_ ]?(?:after|delay)["']?\s*[:=]?\s*["']?(?P<bare>\d+(?:\.\d+)?s?)(?![\w:-]|\.\d)""",
    re.IGNORECASE | re.VERBOSE,
)

_SECRETS = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=*-]{6,}", re.IGNORECASE), r"\1 [redacted]"),
    (re.compile(r"://[^/\s:@]*:[^/\s@]+@"), "://[redacted]@"),
    (
        re.compile(
            r"\b((?:x-)?api[-_ ]?key(?:\s+provided)?|(?:access|auth|id|refresh)[-_ ]?token|token|secret"
            r"|password|authorization|(?<=[?&])key)([\"']?\s*[:=]\s*[\"']?)(?!\[redacted)[^\s\"',&]{4,}",
            re.IGNORECASE,
        ),
        r"\1\2[redacted]",
    ),
    (
        re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|r8|pplx|nvapi|ghp|gho|glpat|tvly|csk)[-_][\w*.-]{6,}"),
        "[redacted]",
    ),
    (
        re.compile(r"\bAIza[\w-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bya29\.[\w.-]+|\beyJ[\w-]+\.[\w.-]+"),
        "[redacted]",
    ),
    (re.compile(r"(?<![\w-])(?=[\w-]*\d)[\w-]{40,}"), "[redacted]"),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one exception says. `codes` are lower case, letters and digits only ("insufficientquota")."""

    names: tuple[str, ...]
    """Names of the class and its bases, in method resolution order."""
    status: int | None
    codes: frozenset[str]
    text: str
    headers: HeaderLimits
    hint: Delay | None
    """A wait named in an attribute, the body or the text (not in a header)."""
    is_retryable: bool | None
    rpc: bool
    """Whether it has a status code the way gRPC has one."""


def collect(exc: BaseException, wall: float | None) -> Evidence:
    """Read one exception (not its causes). `wall` as in `read_headers`. Never raises."""
    response = attribute(exc, "response")
    if response is None:
        response = attribute(exc, "raw_response")
    rpc_code = _called(attribute(exc, "code")) or attribute(exc, "grpc_status_code")
    bodies = [body for body in _bodies(exc, response) if body is not None]
    nodes = [node for body in bodies for node in _nodes(body)]
    codes = [attribute(exc, name) for name in ("code", "type", "status", "reason", "error_code")]
    codes.append(rpc_code)
    codes += [node.get(key) for node in nodes for key in _CODE_KEYS]
    texts = [text for node in nodes for key in _TEXT_KEYS if isinstance(text := node.get(key), str)]
    texts += [
        text
        for text in (attribute(exc, "message"), _called(attribute(exc, "details")), _str(exc))
        if isinstance(text, str)
    ]
    text = "\n".join(dict.fromkeys(part for part in texts if part))[:_MAX_TEXT]
    return Evidence(
        names=tuple(cls.__name__ for cls in type(exc).__mro__),
        status=_status(exc, response, codes),
        codes=frozenset(code for raw in codes for code in _plain(raw)),
        text=text,
        headers=_headers(exc, response, nodes, wall),
        hint=_hint(exc, nodes, text, wall),
        is_retryable=value if isinstance(value := attribute(exc, "is_retryable"), bool) else None,
        rpc=isinstance(attribute(rpc_code, "name"), str),
    )


def redacted(text: str) -> str:
    """The text without keys, tokens and passwords, at most 500 characters."""
    text = text[:_MAX_TEXT]
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def attribute(thing: object, name: str) -> Any:
    """The attribute, None where there is none or where reading it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of a stranger (httpx raises RuntimeError from some of them)
        return None


def _called(thing: object) -> Any:
    """gRPC keeps its fields behind methods without arguments."""
    if not callable(thing) or isinstance(thing, type) or inspect.iscoroutinefunction(thing):
        return None
    try:
        return thing()
    except Exception:  # noqa: BLE001 - a method of a stranger
        return None


def _str(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - a method of a stranger
        return ""


def _status(exc: BaseException, response: object, codes: Sequence[object]) -> int | None:
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    told = [attribute(exc, name) for name in ("status_code", "status", "code", "http_status")]
    told += [attribute(response, name) for name in ("status_code", "status")]
    told += [metadata.get("HTTPStatusCode")] if isinstance(metadata, Mapping) else []
    for value in [*told, *codes]:
        if isinstance(value, str) and len(value) == 3 and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return int(value)
    return None


def _headers(
    exc: BaseException, response: object, nodes: Sequence[Mapping[Any, Any]], wall: float | None
) -> HeaderLimits:
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    sources = [
        attribute(response, "headers"),
        attribute(exc, "headers"),
        _called(attribute(exc, "trailing_metadata")),
    ]
    sources += [metadata.get("HTTPHeaders")] if isinstance(metadata, Mapping) else []
    sources += [node.get("headers") for node in nodes]  # OpenRouter passes on those of the provider behind it
    found = HeaderLimits()
    for source in sources:
        found = read_headers(source, wall=wall)
        if found or found.suspect:
            break
    return found


def _bodies(exc: BaseException, response: object) -> Iterator[Any]:
    yield _parsed(attribute(exc, "body"))
    yield _parsed(attribute(exc, "error"))
    yield attribute(exc, "details")
    yield attribute(exc, "json_body")
    args = attribute(exc, "args")
    yield args[0] if args and isinstance(args[0], Mapping) else None
    if isinstance(response, Mapping):
        yield response
    elif response is not None:
        yield _received(response)


def _received(response: object) -> Any:
    """The response's body if it is here already. `.content` of requests would read from the network."""
    held = getattr(response, "__dict__", {})
    for name in ("_content", "content", "text", "body"):
        if name in held:
            return _parsed(held[name])
    if "_content_consumed" in held:
        return None
    return _called(attribute(response, "json"))


def _parsed(body: object) -> Any:
    if isinstance(body, (str, bytes, bytearray)) and len(body) <= _MAX_BODY:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return {"message": body} if isinstance(body, str) else None
    return body


def _nodes(body: object) -> list[Mapping[Any, Any]]:
    """The body's objects, outermost first, through the keys under which providers nest errors."""
    found: list[Mapping[Any, Any]] = []
    queue = [body]
    for _ in range(_MAX_NODES):
        if not queue:
            break
        part = queue.pop(0)
        if isinstance(part, Mapping):
            found.append(part)
            queue += [part[key] for key in _NESTED_KEYS if isinstance(part.get(key), (Mapping, list, tuple))]
        elif isinstance(part, (list, tuple)):
            queue += part[:_MAX_NODES]
        elif isinstance(held := attribute(part, "__dict__"), dict) and ("code" in held or "message" in held):
            found.append(held)  # azure: `error` is an object
    return found


def _plain(raw: object) -> Iterator[str]:
    """A code in one spelling: "RESOURCE_EXHAUSTED", "ResourceExhausted" and an enum of it are the same."""
    name = raw if isinstance(raw, str) else attribute(raw, "name")
    if isinstance(name, str) and len(name) <= 200:
        plain = re.sub(r"[^a-z0-9]", "", name.rpartition("#")[2].lower())
        if plain:
            yield plain


def _hint(
    exc: BaseException, nodes: Sequence[Mapping[Any, Any]], text: str, wall: float | None
) -> Delay | None:
    details = attribute(exc, "details")
    holders = [exc, *(details if isinstance(details, (list, tuple)) else ())]
    raw = [(attribute(holder, key), 1.0) for holder in holders for key in _WAIT_KEYS]
    raw += [(attribute(exc, key), 1e-3) for key in _WAIT_MS_KEYS]
    raw += [(node.get(key), 1.0) for node in nodes for key in _WAIT_KEYS]
    raw += [(node.get(key), 1e-3) for node in nodes for key in _WAIT_MS_KEYS]
    match = _TEXT_WAIT.search(text)
    if match is not None:
        raw.append(((match["words"] or match["bare"]).strip(" ,\n").removesuffix("and"), 1.0))
    doubtful: Delay | None = None
    for value, factor in raw:
        delay = _delay(value, factor, wall)
        if delay is not None and delay.seconds is not None:
            return delay
        doubtful = doubtful or delay
    return doubtful


def _delay(value: object, factor: float, wall: float | None) -> Delay | None:
    """A wait as a number, a text, a timedelta or a protobuf Duration (`seconds`, `nanos`)."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(attribute(value, "seconds"), int) and isinstance(attribute(value, "nanos"), int):
        value = attribute(value, "seconds") + attribute(value, "nanos") * 1e-9
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return read_delay(repr(max(-1.0, min(value, 1e300)) * factor) if value == value else "nan", wall)
    return read_delay(value, wall) if isinstance(value, str) and len(value) <= 100 else None
