"""agentrm's errors out of a ToolNode's error handling: "Please fix your mistakes" is no answer to a full
queue."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from langgraph.prebuilt.tool_node import TOOL_CALL_ERROR_TEMPLATE

from agentrm.errors import AgentRMError

__all__ = ["passing_ours"]


def passing_ours(flag: Any) -> Any:
    """A value for `handle_tool_errors` that does what `flag` does, and raises agentrm's errors."""
    if not flag:
        return flag
    if callable(flag) and not isinstance(flag, type):
        return _around(flag)

    kinds: Any = flag if isinstance(flag, (type, tuple)) else Exception

    def handle(error: Exception) -> str:
        if isinstance(error, AgentRMError) or not isinstance(error, kinds):
            raise error
        return flag if isinstance(flag, str) else TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error))

    return handle


def _around(handler: Callable[[Exception], str]) -> Callable[[Exception], str]:
    @functools.wraps(handler)  # the node reads the kinds of errors off the annotation
    def handle(error: Exception) -> str:
        if isinstance(error, AgentRMError):
            raise error
        return handler(error)

    return handle
