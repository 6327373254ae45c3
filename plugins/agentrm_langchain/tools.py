"""Tools whose every run takes a lane of the tool pool, alone, in a ToolNode, or in an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools import tool as make_tool

from agentrm.adapters import CallSpec, acall, acall_blocking, call
from agentrm_langchain.gating import Gate, gated_copy, like, make_gate, plain_view
from agentrm_langchain.tool_use import use_of

__all__ = ["gate_tool", "gate_tool_with", "gate_tools", "tool_node"]

B = TypeVar("B", bound=BaseTool)


def gate_tool(rm: Any, tool: B, **options: Any) -> B:
    """A copy of `tool` that runs under a lease of the pool `tools`; `tool` itself stays as it is.

    A sub-agent that the tool runs is nested in its lease. A sync tool awaited from a loop is queued without
    a thread and then runs on one of its own: a caller that is cancelled leaves at once, and the lane is a
    zombie's until the tool has ended. Tools are not retried. `options` as for `gate_model`."""
    return gate_tool_with(make_gate(rm, "gate_tool", options), tool)


def gate_tools(rm: Any, tools: Sequence[Any], **options: Any) -> list[Any]:
    """`gate_tool` for each. Functions become tools; a provider's own tools (dicts), which run there, stay
    as they are."""
    gate = make_gate(rm, "gate_tools", options)
    return [tool if isinstance(tool, dict) else gate_tool_with(gate, _as_tool(tool)) for tool in tools]


def tool_node(rm: Any, tools: Sequence[Any], *, handle_tool_errors: Any = None, **options: Any) -> Any:
    """A LangGraph `ToolNode` of gated tools, for graphs that are not made by `create_agent`.

    `handle_tool_errors` as for ToolNode, but agentrm's own errors are never turned into a message for the
    model, which could not mend them. `name`, `tags` and `messages_key` are passed on; the other options are
    those of `gate_model`."""
    from langgraph.prebuilt import ToolNode

    from agentrm_langchain.tool_errors import passing_ours

    its_own = {name: options.pop(name) for name in ("name", "tags", "messages_key") if name in options}
    node = ToolNode(gate_tools(rm, tools, **options), **its_own)
    flag = node._handle_tool_errors if handle_tool_errors is None else handle_tool_errors
    node._handle_tool_errors = passing_ours(flag)
    return node


def gate_tool_with(gate: Gate, tool: B) -> B:
    return gated_copy(tool, gate, _methods)


def _as_tool(tool: Any) -> BaseTool:
    return tool if isinstance(tool, BaseTool) else make_tool(tool)


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    methods = {"_run": _run(cls, gate), "_arun": _arun(cls, gate)}
    if issubclass(cls, (StructuredTool, Tool)):
        methods["ainvoke"] = _ainvoke(cls)
    return methods


def _spec(gate: Gate, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSpec:
    return gate.spec(kind="tool", tool=tool.name, use=use_of(tool, args, kwargs))


def _is_sync(tool: Any, cls: type[Any]) -> bool:
    """Whether the tool has no async code of its own."""
    if issubclass(cls, (StructuredTool, Tool)) and cls._arun in (StructuredTool._arun, Tool._arun):
        return tool.coroutine is None
    return cls._arun is BaseTool._arun


def _run(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls._run)  # the core reads injected arguments off the signature
    def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = plain_view(self, cls)
        return call(gate.rm, _spec(gate, self, args, kwargs), lambda: plain._run(*args, **kwargs))

    return _run


def _arun(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls._run if cls._arun is BaseTool._arun else cls._arun)
    async def _arun(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = plain_view(self, cls)
        if not _is_sync(self, cls):
            return await acall(gate.rm, _spec(gate, self, args, kwargs), lambda: plain._arun(*args, **kwargs))
        manager = kwargs.get("run_manager")
        if manager is not None and hasattr(manager, "get_sync"):
            kwargs["run_manager"] = manager.get_sync()
        return await acall_blocking(gate.rm, _spec(gate, self, args, kwargs), lambda: plain._run(*args, **kwargs))

    return _arun


def _ainvoke(cls: type[Any]) -> Callable[..., Any]:
    @like(cls.ainvoke)
    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        if _is_sync(self, cls):  # the class's own would queue in a thread of the loop's executor
            return await BaseTool.ainvoke(self, input, config, **kwargs)
        return await cls.ainvoke(self, input, config, **kwargs)

    return ainvoke
