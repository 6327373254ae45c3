"""How do AutoGen's LLM messages become neutral messages and come back equal?

`to_autogen(from_autogen(x)) == x` for system, user (with images), assistant and function result messages. What has no
place in AutoGen's messages (ids, flags, times) stays behind in the neutral ones. AutoGen is imported only when
messages are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agentrm.context.convert_openai import derived_id
from agentrm.context.messages import (
    Message,
    MessageError,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

_ROLES = {
    "SystemMessage": "system",
    "UserMessage": "user",
    "AssistantMessage": "assistant",
    "FunctionExecutionResultMessage": "tool",
}
_IMAGE = "autogen_image"
_THOUGHT = {"$field": "thought"}


def from_autogen(messages: Iterable[Any], seen: dict[str, int] | None = None) -> list[Message]:
    """Neutral messages of AutoGen messages, in order. Their ids are made of their content; `seen` counts equal
    ones, for a list that is read piece by piece.

    Raises `MessageError` for what is no AutoGen message.
    """
    counts: dict[str, int] = {} if seen is None else seen
    return [_read(message, counts) for message in messages]


def to_autogen(messages: Iterable[Message]) -> list[Any]:
    """AutoGen messages of neutral messages. Results that were taken apart stand in one message again.

    Raises `MessageError` for a part that AutoGen has no message for (sounds, files, images that are not inline).
    """
    out: list[Any] = []
    behind: Message | None = None
    for message in messages:
        if message.role == "tool" and behind is not None and behind.role == "tool" and not _is_native(message):
            out[-1] = type(out[-1])(content=[*out[-1].content, *_results(message)])
        else:
            out.append(_write(message))
        behind = message
    return out


def _is_native(message: Message) -> bool:
    return "autogen" in message.extra


def _read(raw: Any, seen: dict[str, int]) -> Message:
    kind = getattr(raw, "type", None)
    if kind not in _ROLES or not hasattr(raw, "content"):
        raise MessageError(f"{type(raw).__name__} is no AutoGen message that agentrm knows (type {kind!r})")
    content = raw.content
    form = "text" if isinstance(content, str) else "parts"
    pieces = [content] if isinstance(content, str) else content
    parts = [_read_part(piece) for piece in pieces]
    thought = getattr(raw, "thought", None)
    if thought is not None:
        parts.insert(0, Reasoning(thought, None, _THOUGHT))
    source = getattr(raw, "source", None)
    message_id = derived_id([kind, source, [part.to_json() for part in parts]], seen)
    return Message(message_id, _ROLES[kind], tuple(parts), source, extra={"autogen": kind}, form=form)


def _read_part(piece: Any) -> Part:
    if isinstance(piece, str):
        return Text(piece)
    if hasattr(piece, "call_id"):
        extra = {"$is_error": None} if piece.is_error is None else {}
        return ToolResult(piece.call_id, piece.content, bool(piece.is_error), piece.name, extra)
    if hasattr(piece, "arguments"):
        return ToolCall(piece.id, piece.name, piece.arguments)
    return Opaque(_IMAGE, {"data": piece.to_base64()})


def _write(message: Message) -> Any:
    from autogen_core import models

    if message.role == "system":
        return models.SystemMessage(content=_text(message.parts))
    if message.role == "user":
        return models.UserMessage(content=_user_content(message), source=message.name or "user")
    if message.role == "tool":
        return models.FunctionExecutionResultMessage(content=_results(message))
    return _assistant(message)


def _assistant(message: Message) -> Any:
    from autogen_core import FunctionCall
    from autogen_core.models import AssistantMessage

    texts = [part for part in message.parts if not isinstance(part, (ToolCall, Reasoning))]
    thoughts = [part.text for part in message.reasoning if part.text is not None]
    content: Any
    if message.calls or (message.form == "parts" and not texts):
        content = [FunctionCall(call.id, _arguments(call), call.name) for call in message.calls]
        thoughts += [_text(texts)] if texts else []  # where AutoGen keeps what is said beside calls
    else:
        content = _text(texts)
    thought = "\n".join(thoughts) if thoughts else None
    return AssistantMessage(content=content, thought=thought, source=message.name or "assistant")


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)


def _user_content(message: Message) -> Any:
    if message.form != "parts" and all(isinstance(part, Text) for part in message.parts):
        return _text(message.parts)
    return [part.text if isinstance(part, Text) else _image(part) for part in message.parts]


def _image(part: Part) -> Any:
    from autogen_core import Image

    if isinstance(part, Opaque) and part.kind == _IMAGE:
        return Image.from_base64(part.data["data"])
    url = part.data.get("image_url") if isinstance(part, Opaque) else None
    uri = url.get("url") if isinstance(url, dict) else url
    if isinstance(uri, str) and uri.startswith("data:image/"):
        return Image.from_uri(uri)
    raise _no_place(part)


def _results(message: Message) -> list[Any]:
    from autogen_core.models import FunctionExecutionResult

    return [
        FunctionExecutionResult(
            content=result.content if isinstance(result.content, str) else _text(result.content),
            name=result.name or "",
            call_id=result.call_id,
            is_error=None if "$is_error" in result.extra else result.is_error,
        )
        for result in message.results
    ]


def _text(parts: Iterable[Part]) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, Text):
            raise _no_place(part)
        texts.append(part.text)
    return "\n".join(texts)


def _no_place(part: Part) -> MessageError:
    kind = part.kind if isinstance(part, Opaque) else part.type
    return MessageError(f"AutoGen has no message for a part of kind {kind!r}; take it out or use an inline image")
