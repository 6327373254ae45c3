"""A function tool whose every run takes a lease."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from agentrm.adapters import ToolUse, acall, acall_blocking
from agentrm.adapters.copies import Gate, turn
from agentrm_maf.gating import make_gate

__all__ = ["gate_tool", "gate_tool_with"]

T = TypeVar("T")


def gate_tool(rm: Any, tool: T, **options: Any) -> T:
    """A copy of `tool` that runs under a lease of kind `tool`; `tool` itself stays as it is. What is sync runs on a
    thread of ours, not in the loop's executor: a run that is cancelled counts as a zombie until its thread ends.
    `options` as in `gate_client`."""
    return gate_tool_with(make_gate(rm, "gate_tool", options), tool)


def gate_tool_with(gate: Gate, tool: T) -> T:
    gated = copy.copy(tool)
    turn(gated, gate, _methods)
    return gated


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    async def _invoke_function(self: Any, call_kwargs: Mapping[str, Any]) -> Any:
        asked = {name: value for name, value in call_kwargs.items() if name != self._context_parameter_name}
        spec = gate.spec(kind="tool", tool=self.name, use=ToolUse(lambda: asked))
        func = getattr(self.func, "func", self.func)  # of a tool made of a tool
        if inspect.iscoroutinefunction(func):
            return await acall(gate.rm, spec, lambda: cls._invoke_function(self, call_kwargs))
        result = await acall_blocking(gate.rm, spec, lambda: self(**call_kwargs))
        return await result if inspect.isawaitable(result) else result

    return {"_invoke_function": _invoke_function}
