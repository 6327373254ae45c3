"""A history of CrewAI that is too long becomes one that fits, in place, without asking a model.

CrewAI's messages are chat dictionaries with a few keys of its own (`files`, `raw_tool_call_parts`, `cache_breakpoint`),
which go with their message. The first request of the user is the task that the agent works on: what CrewAI appends
later in the user's name are nudges, so it is pinned. Attachments of messages that go move to the last request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agentrm.context.compact import Compactor
from agentrm.context.convert_openai import from_openai, to_openai
from agentrm.context.messages import PINNED, SHORTENED, Message, Text
from agentrm.context.shorten import shorten_text
from agentrm.context.tokens import TokenCounter

__all__ = ["compact", "count", "is_lone_request"]

_LEAST = 64  # tokens that are left of a request


@lru_cache(maxsize=64)
def _compactor(model: str) -> Compactor:
    return Compactor(TokenCounter(model))


def count(llm: Any, messages: str | Sequence[dict[str, Any]], tools: Sequence[Any] | None = None) -> int:
    """Tokens of a request, estimated here."""
    counter = _compactor(llm.model).counter
    said = counter.text(messages) if isinstance(messages, str) else counter.messages(from_openai(messages))
    return said + sum(counter.schema(tool) for tool in tools or ())


def is_lone_request(messages: Sequence[dict[str, Any]]) -> bool:
    said = [message.get("role") for message in messages if message.get("role") != "system"]
    return said == ["user"]


def compact(llm: Any, messages: list[Any], low: float) -> None:
    """Down to `low`, a part of the window of `llm`, or of what there is now where that seems to fit: its provider found
    it too long. What may not be changed is shortened only where nothing else is left to give way."""
    compactor = _compactor(llm.model)
    history = _with_task_pinned(from_openai(messages))
    target = int(low * min(llm.get_context_window_size(), compactor.counter.messages(history)))
    found = compactor.compact(history, target)
    kept = _within(found.messages, target, compactor.counter) if found.over_target else found.messages
    written = to_openai(kept)
    _keep_files(messages, written)
    messages[:] = written


def _with_task_pinned(history: list[Message]) -> list[Message]:
    for place, message in enumerate(history):
        if message.role == "user" and not message.is_summary:
            return [*history[:place], message.with_flags(PINNED), *history[place + 1 :]]
    return history


def _within(kept: Sequence[Message], target: int, counter: TokenCounter) -> Sequence[Message]:
    """With the longest requests cut to head, tail and key lines until all fit."""
    out = list(kept)
    requests = [place for place, message in enumerate(out) if message.role == "user" and not message.is_summary]
    for place in sorted(requests, key=lambda place: -counter.message(out[place])):
        over = counter.messages(out) - target
        if over <= 0:
            break
        out[place] = _shortened(out[place], counter.message(out[place]) - over, counter)
    return out


def _shortened(message: Message, tokens: int, counter: TokenCounter) -> Message:
    texts = [part for part in message.parts if isinstance(part, Text)]
    if not texts:
        return message
    longest = max(texts, key=lambda part: len(part.text))
    others = counter.message(message) - counter.text(longest.text)
    short = replace(longest, text=shorten_text(longest.text, max(_LEAST, tokens - others), counter, message.id))
    parts = [short if part is longest else part for part in message.parts]
    return message.with_parts(parts).with_flags(SHORTENED)


def _keep_files(before: Sequence[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    files = {name: file for message in before for name, file in (message.get("files") or {}).items()}
    held = {name for message in after for name in message.get("files") or {}}
    lost = {name: file for name, file in files.items() if name not in held}
    if lost:
        last = next(message for message in reversed(after) if message.get("role") == "user")
        last["files"] = {**lost, **(last.get("files") or {})}
