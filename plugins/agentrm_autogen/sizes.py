"""How large is a model call of AutoGen, before it is made and after: estimates, and the use that was reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autogen_core.models import CreateResult

from agentrm.adapters import Usage, estimate_text, estimate_tokens

__all__ = ["chunk_size", "create_args", "input_size", "is_result", "model_name", "output_limit", "result_size", "usage"]

_PER_MESSAGE = 4
_IMAGE_TOKENS = 1000
_LIMITS = ("max_tokens", "max_completion_tokens", "num_predict")
_FREE = Usage(free=True)


def usage(result: Any) -> Usage | None:
    """From a CreateResult; a chunk of text says nothing."""
    if not isinstance(result, CreateResult):
        return None
    if result.cached:
        return _FREE
    used = result.usage
    return Usage(used.prompt_tokens or 0, used.completion_tokens or 0)


def is_result(chunk: Any) -> bool:
    return isinstance(chunk, CreateResult)


def result_size(result: CreateResult) -> int:
    return _content(result.content) + estimate_text(result.thought or "")


def chunk_size(chunk: Any) -> int:
    """Tokens that a chunk adds to what came before. The result at the end repeats the text."""
    if isinstance(chunk, str):
        return estimate_text(chunk)
    return 0 if isinstance(chunk.content, str) else _content(chunk.content)


def input_size(messages: Iterable[Any], tools: Iterable[Any]) -> int:
    """Tokens of what will be sent. A tool that is no schema yet is taken by name and description: to work out its
    schema takes longer than the rest of the call."""
    total = 0
    for message in messages:
        content = message.content
        total += _PER_MESSAGE + (estimate_text(content) if isinstance(content, str) else _content(content))
    for tool in tools:
        total += estimate_tokens(tool if isinstance(tool, Mapping) else (tool.name, tool.description))
    return max(1, total)


def _content(content: Any) -> int:
    if isinstance(content, str):
        return estimate_text(content)
    return sum(_part(part) for part in content)


def _part(part: Any) -> int:
    """Text, an image, a call, or a result of one."""
    if isinstance(part, str):
        return estimate_text(part)
    texts = [getattr(part, name, None) for name in ("name", "arguments", "content")]
    known = [text for text in texts if isinstance(text, str)]
    return sum(map(estimate_text, known)) if known else _IMAGE_TOKENS


def model_name(*settings: Mapping[str, Any]) -> str | None:
    """The name that pools' `models` patterns are matched with, from the first settings that have one."""
    for source in settings:
        name = source.get("model")
        if isinstance(name, str) and name:
            return name
    return None


def output_limit(*settings: Mapping[str, Any]) -> int | None:
    """The most tokens that the call may produce, None if nothing bounds them."""
    for source in settings:
        for name in _LIMITS:
            value = source.get(name)
            if type(value) is int and value > 0:
                return value
    return None


def create_args(client: Any) -> Mapping[str, Any]:
    """Where every client of autogen-ext keeps the arguments of its requests: itself, not a copy of it."""
    found = getattr(client, "_create_args", None)
    return found if isinstance(found, Mapping) else {}
