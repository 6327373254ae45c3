"""What does a request to a model ask for, and what did its answer use? Read off the JSON of OpenAI's two APIs, of
Anthropic's and of whoever speaks like them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrm.adapters import Usage, estimate_tokens, read_usage

__all__ = ["Asked", "Frames", "answer_size", "answer_usage", "read_request"]

_PROMPTS = ("messages", "input", "prompt", "system", "instructions", "tools", "functions", "response_format")
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_MEDIA = frozenset({"image_url", "input_image", "image", "input_audio", "file", "input_file", "document"})
_MEDIA_TOKENS = 1000
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "message_stop"})
_HOLDERS = ("response", "message")  # of events: the answer so far, with its usage


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to a model. Sizes are tokens, estimated from the text."""

    model: str
    input_tokens: int
    max_output_tokens: int | None
    streams: bool


def read_request(request: Any) -> Asked | None:
    """From a request of httpx or httpx2; None if it is not one to a model (it names none), or can't be read ahead."""
    if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
        return None
    try:
        body = json.loads(request.content)
    except (ValueError, RuntimeError):  # no JSON; a body that is made while it is sent
        return None
    if not isinstance(body, Mapping) or not isinstance(model := body.get("model"), str) or not model:
        return None
    limits = [limit for name in _LIMITS if isinstance(limit := body.get(name), int) and limit > 0]
    size = sum(_size(body[name]) for name in _PROMPTS if body.get(name))
    return Asked(model, max(1, size), limits[0] if limits else None, body.get("stream") is True)


def _size(part: Any) -> int:
    """An image or a file counts as a fixed number of tokens, not by the length of its encoding."""
    if isinstance(part, Mapping):
        if part.get("type") in _MEDIA:
            return _MEDIA_TOKENS
        return sum(_size(value) for name, value in part.items() if name not in ("role", "type", "id"))
    if isinstance(part, list):
        return sum(map(_size, part))
    return estimate_tokens(part)


def answer_usage(answer: Any) -> Usage | None:
    """From an answer or one event of a stream, None if it reports nothing."""
    if not isinstance(answer, Mapping):
        return None
    for holder in (answer, *(answer.get(name) for name in _HOLDERS)):
        if isinstance(holder, Mapping) and (usage := read_usage(holder)) is not None:
            return usage
    return None


def answer_size(answer: Any) -> int:
    """Tokens of the text in an answer or in one event of a stream, estimated. Events that say again what others said
    before them count nothing."""
    if not isinstance(answer, Mapping):
        return 0
    if "choices" in answer:  # some servers say null where there are none
        choices = answer["choices"] if isinstance(answer["choices"], list) else []
        said = (choice for choice in choices if isinstance(choice, Mapping))
        return sum(_size(choice.get("delta") or choice.get("message") or choice.get("text")) for choice in said)
    return _size(answer.get("delta") or answer.get("output") or answer.get("content"))


class Frames:
    """Reads server-sent events out of the bytes that pass by, however they are cut. `ended`: the last one came."""

    __slots__ = ("_parts", "ended")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line without an end so far: joined once, however long it gets
        self.ended = False

    def add(self, data: bytes) -> Iterator[Any]:
        """The JSON of the events that are complete with `data`."""
        self._parts.append(data)
        if b"\n" not in data:
            return
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest]
        for line in lines:
            if not line.startswith(b"data:") or not (text := line[5:].strip()):
                continue
            if text == b"[DONE]":
                self.ended = True
                continue
            try:
                event = json.loads(text)
            except ValueError:
                continue  # not ours to judge; its reader will
            self.ended = self.ended or (isinstance(event, Mapping) and event.get("type") in _LAST)
            yield event
