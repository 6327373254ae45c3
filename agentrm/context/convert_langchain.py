"""How do LangChain messages become neutral messages and come back equal?

`to_langchain(from_langchain(x)) == x` for system, human, AI, tool, function and chat messages, with every
field that LangChain has or grows: what agentrm does not read is kept under `extra["langchain"]`. Messages
of another origin are written in LangChain's own conventions (unknown provider fields go to
`additional_kwargs`). LangChain is imported only when a conversion runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentrm.context.convert_openai import derived_id, read_block, write_block
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
    "system": "system", "human": "user", "ai": "assistant", "tool": "tool", "function": "tool", "chat":
    "user", "AIMessageChunk": "assistant", "HumanMessageChunk": "user", "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool", "FunctionMessageChunk": "tool", "ChatMessageChunk": "user",
}  # fmt: skip
_CHAT_ROLES = {"system": "system", "developer": "system", "assistant": "assistant", "ai": "assistant"}
_READ = frozenset({"content", "type", "name", "id", "tool_calls", "invalid_tool_calls", "tool_call_id"})


def from_langchain(messages: Iterable[Any]) -> list[Message]:
    """Neutral messages of LangChain messages, in order.

    Raises `MessageError` for what is no LangChain message.
    """
    seen: dict[str, int] = {}
    return [_read(m, seen) for m in messages]


def to_langchain(messages: Iterable[Message]) -> list[Any]:
    """LangChain messages of neutral messages. Flags travel in `additional_kwargs["agentrm"]`."""
    out: list[Any] = []
    for message in messages:
        if message.role == "tool" and len(message.results) > 1:
            for index, result in enumerate(message.results):
                piece = Message(
                    f"{message.id}_{index}", "tool", (result,), None, message.created, message.flags
                )
                out.append(_write(piece))
        else:
            out.append(_write(message))
    return out


def _read(raw: Any, seen: dict[str, int]) -> Message:
    kind = getattr(raw, "type", None)
    if kind not in _ROLES or not hasattr(raw, "additional_kwargs"):
        raise MessageError(f"{type(raw).__name__} is no LangChain message that agentrm knows (type {kind!r})")
    role = _ROLES[kind]
    if kind.startswith("chat") or kind.startswith("Chat"):
        role = _CHAT_ROLES.get(str(raw.role).lower(), "user")
    keep = {name: getattr(raw, name) for name in type(raw).model_fields if name not in _READ}
    keep.update(raw.__pydantic_extra__ or {})
    kwargs = dict(keep.pop("additional_kwargs", {}))
    own = kwargs.pop("agentrm", None) or {}
    keep = {k: v for k, v in keep.items() if v not in (None, {}, [])}
    keep["class"] = type(raw).__name__
    if kwargs:
        keep["additional_kwargs"] = kwargs
    if isinstance(raw.content, str):
        form, parts = "text", [_text(raw.content)]
    else:
        form, parts = "parts", [read_block(block) for block in raw.content]
    if role == "tool":
        content: Any = raw.content if form == "text" else tuple(parts)
        failed = getattr(raw, "status", "success") == "error"
        parts = [ToolResult(getattr(raw, "tool_call_id", "") or "", content, failed, raw.name)]
    for call in getattr(raw, "tool_calls", None) or ():
        parts.append(_call(call, "args", {}))
    for call in getattr(raw, "invalid_tool_calls", None) or ():
        parts.append(_call(call, "args", {"$form": "invalid"}))
    if not raw.id:
        keep["no_id"] = True
    message_id = raw.id or derived_id([kind, raw.content, raw.name, [p.to_json() for p in parts]], seen)
    extra: dict[str, Any] = {**own.get("extra", {}), "langchain": keep}
    name = None if role == "tool" else raw.name
    return Message(
        message_id, role, tuple(parts), name, own.get("created"), frozenset(own.get("flags", ())), extra, form
    )


def _text(text: str) -> Part:
    return Text(text)


def _call(call: Mapping[str, Any], key: str, extra: dict[str, Any]) -> ToolCall:
    more = {k: v for k, v in call.items() if k not in ("name", key, "id")}
    if call.get("id") is None:
        more["$id"] = None
    if call.get("name") is None:
        more["$name"] = None
    arguments = call.get(key)
    if arguments is None:
        more["$arguments"] = None
    return ToolCall(
        call.get("id") or "",
        call.get("name") or "",
        arguments or "" if not isinstance(arguments, Mapping) else dict(arguments),
        {**extra, **more},
    )


def _write(message: Message) -> Any:
    from langchain_core import messages as lc

    keep = dict(message.extra.get("langchain", {}))
    name = keep.pop("class", None)
    no_id = keep.pop("no_id", False)
    default = {
        "system": "SystemMessage",
        "user": "HumanMessage",
        "assistant": "AIMessage",
        "tool": "ToolMessage",
    }
    cls = getattr(lc, name or default[message.role])
    kwargs = dict(keep.pop("additional_kwargs", {}))
    own: dict[str, Any] = {}
    if message.flags:
        own["flags"] = sorted(message.flags)
    if message.created is not None and not no_id:
        own["created"] = message.created
    foreign = {k: v for k, v in message.extra.items() if k != "langchain"}
    if foreign:
        own["extra"] = foreign
    if own:
        kwargs["agentrm"] = own
    fields: dict[str, Any] = {**keep, "additional_kwargs": kwargs, "id": None if no_id else message.id}
    if message.results and message.role == "tool":
        result = message.results[0]
        fields["content"] = _result_content(result)
        if "tool_call_id" in cls.model_fields:
            fields["tool_call_id"] = result.call_id
            fields["status"] = "error" if result.is_error else "success"
        if result.name is not None:
            fields["name"] = result.name
        return cls(**fields)
    fields["content"] = _content(message)
    if message.name is not None:
        fields["name"] = message.name
    if message.calls:
        good, bad = _calls(message.calls)
        fields["tool_calls"], fields["invalid_tool_calls"] = good, bad
    return cls(**fields)


def _result_content(result: ToolResult) -> Any:
    return result.content if isinstance(result.content, str) else [write_block(p) for p in result.content]


def _content(message: Message) -> Any:
    parts = [p for p in message.parts if isinstance(p, (Text, Opaque, Reasoning))]
    if message.form != "parts" and all(isinstance(p, Text) for p in parts) and len(parts) <= 1:
        return parts[0].text if parts and isinstance(parts[0], Text) else ""
    if message.form in ("text", "none", "absent"):  # fields of another wire; text stays a string
        texts = [p.text for p in parts if isinstance(p, Text)]
        blocks = [p for p in parts if not (isinstance(p, Reasoning) and "$field" in p.opaque)]
        if len(blocks) == len(texts):
            return "".join(texts)
    out: list[Any] = []
    for part in parts:
        if isinstance(part, Reasoning) and "$field" in part.opaque:
            out.append(part.opaque.get("block") or {"type": "reasoning", "reasoning": part.text})
        else:
            out.append(write_block(part))
    return out


def _calls(calls: Iterable[ToolCall]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for call in calls:
        entry: dict[str, Any] = {
            "name": None if "$name" in call.extra else call.name,
            "args": None if "$arguments" in call.extra else call.arguments,
            "id": None if "$id" in call.extra else call.id,
        }
        from_lc = {k: v for k, v in call.extra.items() if not k.startswith("$") and k in ("type", "error")}
        if call.extra.get("$form") == "invalid":
            bad.append({"error": None, **entry, **from_lc})
            continue
        if isinstance(call.arguments, str):
            parsed = _parse(call.arguments)
            if parsed is None:
                bad.append({**entry, "error": "arguments are not a JSON object", "type": "invalid_tool_call"})
                continue
            entry["args"] = parsed
        more = {k: v for k, v in call.extra.items() if not k.startswith("$")} if "type" in from_lc else {}
        good.append(
            {**entry, "type": "tool_call", **({} if more.get("type") in ("function", "custom") else more)}
        )
    return good, bad


def _parse(arguments: str) -> dict[str, Any] | None:
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
