"""What the guards against runaway agents see of a tool call of LangChain, and how a note reaches the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException

from agentrm.adapters import ToolUse

__all__ = ["use_of", "use_of_request"]


def use_of(tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ToolUse:
    """Of a run of `tool` with what LangChain gives its `_run`."""

    def noted(result: Any, note: str) -> Any:
        if tool.response_format == "content_and_artifact" and isinstance(result, tuple) and len(result) == 2:
            return _noted(result[0], note), result[1]
        return _noted(result, note)

    return ToolUse(lambda: _asked(tool, args, kwargs), _said, noted)


def use_of_request(request: Any) -> ToolUse:
    """Of a call whose tool another middleware provides: its result is a message."""
    return ToolUse(lambda: request.tool_call["args"], _said, _noted)


def _asked(tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the model said, without states, stores, callbacks and ids that LangChain injects."""
    schema: Any = tool.tool_call_schema
    names = schema.get("properties", {}) if isinstance(schema, dict) else schema.model_fields
    return args, {name: value for name, value in kwargs.items() if name in names}


def _said(outcome: Any) -> Any:
    """Without ids and paths, which differ each time."""
    if isinstance(outcome, BaseException):
        from langgraph.errors import GraphBubbleUp

        return None if isinstance(outcome, GraphBubbleUp) else [type(outcome).__name__, str(outcome)]
    if isinstance(outcome, BaseMessage):
        return [outcome.type, outcome.content]
    if isinstance(outcome, (list, tuple)):
        return [_said(part) for part in outcome]
    if isinstance(outcome, Mapping):
        return {key: _said(value) for key, value in outcome.items()}
    if type(outcome).__name__ == "Command":
        return [str(outcome.goto), str(outcome.graph), _said(outcome.update)]
    return outcome


def _noted(result: Any, note: str) -> Any:
    if isinstance(result, str):
        return f"{result}\n\n{note}"
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"content": _noted(result.content, note)})
    if isinstance(result, ToolException):  # becomes the tool's answer where its `handle_tool_error` says so
        result.args = (f"{result}\n\n{note}",)
        return result
    if isinstance(result, list) and all(isinstance(part, (str, dict)) for part in result):
        return [*result, {"type": "text", "text": note}] if _are_blocks(result) else f"{_text(result)}\n\n{note}"
    if result is None or isinstance(result, (bool, int, float, dict)):
        return f"{_text(result)}\n\n{note}"
    return result


def _are_blocks(parts: list[Any]) -> bool:
    return all(isinstance(part, str) or "type" in part for part in parts)


def _text(result: Any) -> str:
    """As LangChain would show it to the model."""
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)
