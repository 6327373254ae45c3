"""How do OpenAI chat dictionaries become neutral messages and come back unchanged?

`to_openai(from_openai(x)) == x` for every list of chat dictionaries: content as string, list, None or
absent; tool calls in the wire form (`function: {...}`), the flat form of many logs (`{id, name,
arguments}`), custom tools and the old `function_call`; reasoning in its usual fields (`reasoning_content`,
`reasoning`, `thinking_blocks`, `reasoning_details`) and as content blocks; unknown fields anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrm.context.messages import (
    SUMMARY,
    Message,
    MessageError,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

_REASONING_TEXT_FIELDS = ("reasoning_content", "reasoning")
_REASONING_LIST_FIELDS = ("thinking_blocks", "reasoning_details")
REASONING_BLOCKS = frozenset({"thinking", "redacted_thinking", "reasoning"})
CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call", "tool_call_chunk"})
SUMMARY_NAME = "agentrm_summary"  # how a summary is told apart on the wire


def from_openai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Neutral messages of a chat list. Ids are the dictionaries' own, else derived from content and
    occurrence,

    so the same list read twice, or read again after it grew, gives the same ids. Raises `MessageError` for an
    entry without a known role.
    """
    out: list[Message] = []
    seen: dict[str, int] = {}
    last_function_call = ""
    for index, raw in enumerate(messages):
        message = _read(raw, index, last_function_call, seen)
        for call in message.calls:
            if call.extra.get("$form") == "function_call":
                last_function_call = call.id
        out.append(message)
    return out


def to_openai(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Chat dictionaries of neutral messages; several results in one message become several `tool` entries."""
    out: list[dict[str, Any]] = []
    for message in messages:
        out.extend(_write(message))
    return out


def derived_id(payload: Any, seen: dict[str, int]) -> str:
    """A stable id for a message that has none: a hash of its content, and the how-manieth equal one it is."""
    blob = json.dumps(payload, sort_keys=True, default=str, ensure_ascii=False)
    digest = hashlib.blake2b(blob.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    count = seen.get(digest, 0)
    seen[digest] = count + 1
    return f"m_{digest}" if count == 0 else f"m_{digest}_{count}"


def _read(raw: Mapping[str, Any], index: int, last_function_call: str, seen: dict[str, int]) -> Message:
    rest = dict(raw)
    role = rest.pop("role", None)
    if role not in ("system", "developer", "user", "assistant", "tool", "function"):
        raise MessageError(
            f"entry {index} has role {role!r}; use system, developer, user, assistant, tool or function"
        )
    form, parts = _read_content(rest)
    name = rest.pop("name", None) if isinstance(rest.get("name"), str) else None
    wire: dict[str, Any] = {}
    if role in ("tool", "function"):
        if role == "function":
            wire["role"] = "function"
        call_id = rest.pop("tool_call_id", None)
        if not isinstance(call_id, str):
            if call_id is not None or "tool_call_id" in raw:
                wire["tool_call_id"] = call_id
            else:
                wire["no_call_id"] = True
            call_id = last_function_call if role == "function" else ""
        only_text = form == "text" and len(parts) == 1 and isinstance(parts[0], Text)
        content: Any = parts[0].text if only_text and isinstance(parts[0], Text) else tuple(parts)
        result = ToolResult(call_id, content, bool(rest.get("is_error", False)), name)
        parts, name = [result], None
        role = "tool"
    else:
        parts = _read_reasoning(rest) + parts + _read_calls(rest, index)
        if role == "developer":
            wire["role"], role = "developer", "system"
    flags = frozenset({SUMMARY}) if name == SUMMARY_NAME else frozenset()
    if wire:
        rest["$openai"] = wire
    given = raw.get("id")
    message_id = given if isinstance(given, str) and given else derived_id(raw, seen)
    created = raw.get("ts") if isinstance(raw.get("ts"), (int, float)) else None
    return Message(message_id, role, tuple(parts), name, created, flags, rest, form)


def _read_content(rest: dict[str, Any]) -> tuple[str, list[Part]]:
    if "content" not in rest:
        return "absent", []
    content = rest.pop("content")
    if content is None:
        return "none", []
    if isinstance(content, str):
        return "text", [Text(content)]
    if isinstance(content, Sequence):
        return "parts", [read_block(block) for block in content]
    return "parts", [Opaque("$value", {"value": content})]


def read_block(block: Any) -> Part:
    """One content block. Text and reasoning are understood, everything else is carried."""
    if isinstance(block, str):
        return Text(block, {"$bare": True})
    if not isinstance(block, Mapping):
        return Opaque("$item", {"value": block})
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(block["text"], {k: v for k, v in block.items() if k not in ("type", "text")})
    if kind in REASONING_BLOCKS:
        text = next(
            (block[k] for k in ("thinking", "reasoning", "text") if isinstance(block.get(k), str)), None
        )
        signature = block.get("signature")
        return Reasoning(text, signature if isinstance(signature, str) else None, dict(block))
    return Opaque(str(kind or ""), dict(block))


def write_block(part: Part) -> Any:
    """The content block that `read_block` read."""
    if isinstance(part, Text):
        if part.extra.get("$bare"):
            return part.text
        return {"type": "text", "text": part.text, **part.extra}
    if isinstance(part, Opaque):
        return part.data["value"] if part.kind in ("$item", "$value") else dict(part.data)
    if isinstance(part, Reasoning):
        if part.opaque:
            return dict(part.opaque)
        out = {"type": "thinking", "thinking": part.text or ""}
        return {**out, "signature": part.signature} if part.signature is not None else out
    raise MessageError(f"a {part.type} part is not a content block")


def _read_reasoning(rest: dict[str, Any]) -> list[Part]:
    out: list[Part] = []
    for key in _REASONING_TEXT_FIELDS:
        if isinstance(rest.get(key), str):
            out.append(Reasoning(rest.pop(key), None, {"$field": key}))
    for key in _REASONING_LIST_FIELDS:
        blocks = rest.get(key)
        if isinstance(blocks, list) and blocks and all(isinstance(b, Mapping) for b in blocks):
            for block in rest.pop(key):
                part = read_block({"type": "thinking", **block})
                assert isinstance(part, Reasoning)
                out.append(Reasoning(part.text, part.signature, {"$field": key, "block": dict(block)}))
    return out


def _read_calls(rest: dict[str, Any], index: int) -> list[Part]:
    out: list[Part] = []
    if isinstance(rest.get("tool_calls"), list) and rest["tool_calls"]:
        for raw in rest.pop("tool_calls"):
            out.append(_read_call(raw))
    legacy = rest.get("function_call")
    if isinstance(legacy, Mapping):
        rest.pop("function_call")
        extra = {
            "$form": "function_call",
            **{k: v for k, v in legacy.items() if k not in ("name", "arguments")},
        }
        out.append(
            ToolCall(
                f"function_call_{index}", str(legacy.get("name", "")), legacy.get("arguments", ""), extra
            )
        )
    return out


def _read_call(raw: Mapping[str, Any]) -> ToolCall:
    call_id = raw.get("id")
    extra: dict[str, Any] = {k: v for k, v in raw.items() if k not in ("id", "function", "name", "arguments")}
    if not isinstance(call_id, str):
        extra["$id"] = call_id if "id" in raw else "$absent"
    body = raw.get("function")
    if isinstance(body, Mapping):
        for key in ("name", "arguments"):
            if key in raw:
                extra[key] = raw[key]
        inner = {k: v for k, v in body.items() if k not in ("name", "arguments")}
        if inner:
            extra["function"] = inner
    elif raw.get("type") == "custom" and isinstance(raw.get("custom"), Mapping):
        body = raw["custom"]
        extra["custom"] = {k: v for k, v in body.items() if k not in ("name", "input")}
        return ToolCall(call_id or "", str(body.get("name", "")), body.get("input", ""), extra)
    else:
        body = raw
        extra["$form"] = "flat"
        if "function" in raw:
            extra["function"] = raw["function"]
    arguments = body.get("arguments", "")
    if "arguments" not in body:
        extra["$no_arguments"] = True
    elif not isinstance(arguments, (str, Mapping)):
        extra["$arguments"] = arguments
        arguments = ""
    return ToolCall(call_id if isinstance(call_id, str) else "", str(body.get("name", "")), arguments, extra)


def _write(message: Message) -> list[dict[str, Any]]:
    extra = {k: v for k, v in message.extra.items() if not k.startswith("$") and k != "langchain"}
    wire = message.extra.get("$openai", {})
    out: list[dict[str, Any]] = [_write_result(r, extra, wire, message.form) for r in message.results]
    if out and message.role == "tool":
        return out
    entry: dict[str, Any] = {"role": wire.get("role", message.role)}
    content = [p for p in message.parts if isinstance(p, (Text, Opaque)) or _is_block(p)]
    if message.calls:  # blocks that repeat a call in another provider's spelling
        content = [p for p in content if not (isinstance(p, Opaque) and p.kind in CALL_BLOCKS)]
    if message.form == "none" and not content:
        entry["content"] = None
    elif message.form == "text" and len(content) == 1 and isinstance(content[0], Text):
        entry["content"] = content[0].text
    elif message.form == "parts":
        whole = len(content) == 1 and isinstance(content[0], Opaque) and content[0].kind == "$value"
        entry["content"] = write_block(content[0]) if whole else [write_block(p) for p in content]
    elif message.form != "absent" or content:
        texts = [p.text for p in content if isinstance(p, Text)]
        if len(texts) == len(content) and len(texts) <= 1:
            entry["content"] = texts[0] if texts else (None if message.calls else "")
        else:
            entry["content"] = [write_block(p) for p in content]
    _write_reasoning(message, entry)
    _write_calls(message, entry)
    if message.name is not None:
        entry["name"] = message.name
    elif message.is_summary:
        entry["name"] = SUMMARY_NAME
    entry.update(extra)
    return [*out, entry]


def _write_result(
    result: ToolResult, extra: Mapping[str, Any], wire: Mapping[str, Any], form: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": wire.get("role", "tool")}
    if isinstance(result.content, str):
        entry["content"] = result.content
    elif not result.content and form in ("none", "absent"):
        if form == "none":
            entry["content"] = None
    else:
        entry["content"] = [write_block(p) for p in result.content]
    if "tool_call_id" in wire:
        entry["tool_call_id"] = wire["tool_call_id"]
    elif not wire.get("no_call_id"):
        entry["tool_call_id"] = result.call_id
    if result.name is not None:
        entry["name"] = result.name
    entry.update(extra)
    return entry


def _is_block(part: Part) -> bool:
    return isinstance(part, Reasoning) and "$field" not in part.opaque


def _write_reasoning(message: Message, entry: dict[str, Any]) -> None:
    for part in message.reasoning:
        key = part.opaque.get("$field")
        if key in _REASONING_TEXT_FIELDS:
            entry[key] = part.text
        elif key is not None:
            entry.setdefault(key, []).append(dict(part.opaque["block"]))


def _write_calls(message: Message, entry: dict[str, Any]) -> None:
    calls: list[dict[str, Any]] = []
    for call in message.calls:
        if call.extra.get("$form") == "function_call":
            more = {k: v for k, v in call.extra.items() if k != "$form"}
            entry["function_call"] = {"name": call.name, "arguments": call.arguments, **more}
        else:
            calls.append(_write_call(call))
    if calls:
        entry["tool_calls"] = calls


def _write_call(call: ToolCall) -> dict[str, Any]:
    extra = call.extra
    out: dict[str, Any] = {} if extra.get("$id") == "$absent" else {"id": extra.get("$id", call.id)}
    rest = {k: v for k, v in extra.items() if not k.startswith("$")}
    if rest.get("type") == "custom" and "custom" in rest:
        return {**out, **rest, "custom": {"name": call.name, "input": call.arguments, **rest["custom"]}}
    arguments = extra.get("$arguments", call.arguments)
    if extra.get("$form") == "flat":
        body: dict[str, Any] = {"name": call.name}
        if not extra.get("$no_arguments"):
            body["arguments"] = arguments
        return {**out, **body, **rest}
    if rest.get("type") in (
        "tool_call",
        "invalid_tool_call",
    ):  # another framework's call: its tags stay there
        rest = {}
    if isinstance(arguments, Mapping) and "type" not in rest:
        arguments = json.dumps(arguments, ensure_ascii=False)
    body = {"name": call.name}
    if not extra.get("$no_arguments"):
        body["arguments"] = arguments
    body.update(rest.pop("function", {}))
    return (
        {**out, "type": "function", **rest, "function": body}
        if "type" not in rest
        else {
            **out,
            **rest,
            "function": body,
        }
    )
