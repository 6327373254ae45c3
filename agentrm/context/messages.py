"""What is a message, independent of any framework?

A `Message` is immutable and holds everything that its source held: what agentrm understands becomes a typed
part, what it does not understand is carried through unchanged (`Opaque` parts, `extra` fields). Rooms and
stores exchange these objects; a converter per framework (`convert_openai`, `convert_langchain`, ...) is the
only place that knows a foreign shape.

Guarantees
- `Message.from_json(m.to_json()) == m` for every message whose `extra` and opaque data are JSON values;
  bytes are kept too. Other Python objects (a tool's artifact, say) cannot be written: they come back as a
  marker that names their type.
- Nothing here changes a text: equal text in, equal text out, to the byte.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from agentrm.errors import AgentRMError

ROLES = ("system", "user", "assistant", "tool")

# Flags with a meaning to agentrm; any other string may be used by an application.
PINNED = "pinned"  # never changed, moved behind later text or dropped
SUMMARY = "summary"  # written by a compaction: background, never a request
SYNTHETIC = "synthetic"  # written by agentrm, not by a person, model or tool
SHORTENED = "shortened"  # a tool result shown as head, tail and key lines
PENDING = "pending"  # stands in for the result of a call that is still open


class MessageError(AgentRMError, ValueError):
    """A message or a message record that cannot be read; the text names the field and what is accepted."""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text that the model reads."""

    text: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    type: ClassVar[str] = "text"

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "text", "text": self.text}
        if self.extra:
            out["extra"] = _plain(self.extra)
        return out


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that is carried, not understood: an image, a sound, a file, a provider's own block.

    `kind` is the source's type tag (`image_url`, `input_audio`, `document`, ...); `data` is the block as it
    came.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    type: ClassVar[str] = "opaque"

    def to_json(self) -> dict[str, Any]:
        return {"type": "opaque", "kind": self.kind, "data": _plain(self.data)}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's reasoning block. With a signature it is valid only unmodified and behind an unchanged prefix.

    `opaque` holds the block as the provider sent it (encrypted content, redacted data, field names).
    """

    text: str | None = None
    signature: str | None = None
    opaque: Mapping[str, Any] = field(default_factory=dict, hash=False)
    type: ClassVar[str] = "reasoning"

    @property
    def signed(self) -> bool:
        """True when the provider checks the block: it may be sent whole or not at all."""
        return self.signature is not None or any(
            key in self.opaque for key in ("signature", "encrypted_content", "data", "thought_signature")
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "reasoning", "text": self.text, "signature": self.signature}
        if self.opaque:
            out["opaque"] = _plain(self.opaque)
        return out


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the assistant.

    `arguments` is the raw string of the wire, or an object if the source had one.
    """

    id: str
    name: str
    arguments: str | Mapping[str, Any] = field(default="", hash=False)
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    type: ClassVar[str] = "tool_call"

    def to_json(self) -> dict[str, Any]:
        args = self.arguments if isinstance(self.arguments, str) else _plain(self.arguments)
        out: dict[str, Any] = {"type": "tool_call", "id": self.id, "name": self.name, "arguments": args}
        if self.extra:
            out["extra"] = _plain(self.extra)
        return out


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the call `call_id`.

    `content` is a string, or parts (text, images) when the source had parts.
    """

    call_id: str
    content: str | tuple[Text | Opaque, ...] = ""
    is_error: bool = False
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    type: ClassVar[str] = "tool_result"

    @property
    def text(self) -> str:
        """The readable text of the result; media parts are left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    def to_json(self) -> dict[str, Any]:
        body: Any = self.content if isinstance(self.content, str) else [p.to_json() for p in self.content]
        out: dict[str, Any] = {"type": "tool_result", "call_id": self.call_id, "content": body}
        if self.is_error:
            out["is_error"] = True
        if self.name is not None:
            out["name"] = self.name
        if self.extra:
            out["extra"] = _plain(self.extra)
        return out


Part: TypeAlias = Text | Opaque | Reasoning | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `created` is wall time in seconds since 1970, or None when unknown.

    `form` remembers how the source wrote the content where several spellings mean the same (`none`, `text`,
    `parts`; empty for messages made here), so that a converter can give the same spelling back.
    """

    id: str
    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None
    created: float | None = None
    flags: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    form: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise MessageError(f"message {self.id!r} has role {self.role!r}; use one of {', '.join(ROLES)}")

    @property
    def text(self) -> str:
        """The text that the model reads here:

        text parts and tool results, without reasoning and call arguments.
        """
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return "\n".join(p.text for p in parts if isinstance(p, (Text, ToolResult)))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Text):  # most messages are asked often
            return ()
        return tuple(p for p in parts if isinstance(p, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(p for p in self.parts if isinstance(p, ToolResult))

    @property
    def reasoning(self) -> tuple[Reasoning, ...]:
        return tuple(p for p in self.parts if isinstance(p, Reasoning))

    @property
    def pinned(self) -> bool:
        return PINNED in self.flags

    @property
    def is_summary(self) -> bool:
        return SUMMARY in self.flags

    def with_flags(self, *flags: str) -> Message:
        return replace(self, flags=self.flags | frozenset(flags))

    def with_parts(self, parts: Iterable[Part]) -> Message:
        return replace(self, parts=tuple(parts))

    def to_json(self) -> dict[str, Any]:
        """A plain dict of JSON values; absent optional fields are left out."""
        out: dict[str, Any] = {"id": self.id, "role": self.role, "parts": [p.to_json() for p in self.parts]}
        if self.name is not None:
            out["name"] = self.name
        if self.created is not None:
            out["created"] = self.created
        if self.flags:
            out["flags"] = sorted(self.flags)
        if self.extra:
            out["extra"] = _plain(self.extra)
        if self.form:
            out["form"] = self.form
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Message:
        """The inverse of `to_json`. Raises `MessageError` for a record that is not one."""
        try:
            return cls(
                id=data["id"],
                role=data["role"],
                parts=tuple([part_from_json(p) for p in data["parts"]]),
                name=data.get("name"),
                created=data.get("created"),
                flags=frozenset(data.get("flags", ())),
                extra=_revive(data.get("extra", {})),
                form=data.get("form", ""),
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise MessageError(
                f"message record cannot be read ({type(exc).__name__}: {exc}); it needs id, role and parts"
            ) from exc


def part_from_json(data: Mapping[str, Any]) -> Part:
    """One part from its `to_json` form. Raises `MessageError` for an unknown type."""
    kind = data["type"]
    if kind == "text":
        return Text(data["text"], _revive(data.get("extra", {})))
    if kind == "tool_call":
        return ToolCall(data["id"], data["name"], _revive(data["arguments"]), _revive(data.get("extra", {})))
    if kind == "tool_result":
        body = data["content"]
        content = body if isinstance(body, str) else tuple([_content_part(p) for p in body])
        return ToolResult(
            data["call_id"],
            content,
            data.get("is_error", False),
            data.get("name"),
            _revive(data.get("extra", {})),
        )
    if kind == "reasoning":
        return Reasoning(data["text"], data["signature"], _revive(data.get("opaque", {})))
    if kind == "opaque":
        return Opaque(data["kind"], _revive(data["data"]))
    raise MessageError(f"unknown part type {kind!r}; known: text, opaque, reasoning, tool_call, tool_result")


def _content_part(data: Mapping[str, Any]) -> Text | Opaque:
    part = part_from_json(data)
    if isinstance(part, (Text, Opaque)):
        return part
    raise MessageError(f"a tool result holds text and opaque parts, not {part.type!r}")


def new_id() -> str:
    """A fresh message id, unique across processes."""
    return f"m_{uuid.uuid4().hex}"


def make(role: str, text: str, *, id: str | None = None, flags: Iterable[str] = (), **fields: Any) -> Message:
    """A message of one text part; `fields` are further fields of `Message`."""
    return Message(id or new_id(), role, (Text(text),), flags=frozenset(flags), **fields)


_ESCAPES = ("$bytes", "$lost", "$dict")


def _plain(value: Any) -> Any:
    """JSON values as they are; bytes and unknown objects as one-key dicts that `_revive` reads back."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        out = {str(k): _plain(v) for k, v in value.items()}
        if len(out) == 1 and next(iter(out)) in _ESCAPES:
            return {"$dict": out}  # a dict of the source that looks like an escape
        return out
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    return {"$lost": f"{type(value).__module__}.{type(value).__qualname__}"}


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            if "$bytes" in value:
                return base64.b64decode(value["$bytes"])
            if "$dict" in value:
                return {k: _revive(v) for k, v in value["$dict"].items()}
        return {k: _revive(v) for k, v in value.items()} if value else value
    if isinstance(value, list):
        return [_revive(v) for v in value]
    return value
