"""Messages for sessions' tests, each said in a word."""

from __future__ import annotations

from collections.abc import Sequence

from agentrm.context.messages import Message, ToolCall, ToolResult, make


def user(text: str, id: str | None = None) -> Message:
    return make("user", text, id=id)


def call(*ids: str) -> Message:
    return Message(f"a-{'-'.join(ids)}", "assistant", tuple(ToolCall(one, "act", "{}") for one in ids))


def result(call_id: str, text: str = "ok", id: str | None = None) -> Message:
    return Message(id or f"t-{call_id}", "tool", (ToolResult(call_id, text),))


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]
