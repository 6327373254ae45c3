"""What `rm.attach(x)` does for an object of LangChain or LangGraph."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from agentrm.adapters import AttachError

if TYPE_CHECKING:
    from agentrm_langchain.gating import Gate

__all__ = ["LangChainAdapter", "adapter"]

_AGENT = "agent = create_agent(model, tools, middleware=[AgentRMMiddleware(rm)])"
_GRAPH = "rm.attach(model) in the nodes and tool_node(rm, tools) for the tools, before the graph is compiled"


class LangChainAdapter:
    """Models, tools, ToolNodes, chains that contain any of these, and middleware with a model of its own."""

    name = "langchain"
    packages = ("langchain_core", "langchain", "langgraph")

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        from agentrm_langchain.gating import make_gate

        gate = make_gate(rm, "attach", options)
        gated = _gated(gate, x)
        if gated is not x:
            return gated
        raise _refusal(x)


adapter = LangChainAdapter()


def _gated(gate: Gate, x: Any) -> Any:
    """The gated equivalent, or `x` itself where there is nothing to gate."""
    from langchain_core.tools import BaseTool

    from agentrm_langchain.models import gate_model_with, is_model
    from agentrm_langchain.tools import gate_tool_with

    if is_model(x):
        return gate_model_with(gate, x)
    if isinstance(x, BaseTool):
        return gate_tool_with(gate, x)
    packages = {cls.__module__.partition(".")[0] for cls in type(x).__mro__}
    if "langgraph" in packages and hasattr(x, "tools_by_name"):
        return _gated_node(gate, x)
    if "langchain" in packages and hasattr(x, "wrap_model_call"):
        return _gated_middleware(gate, x)
    return _gated_chain(gate, x)


def _gated_node(gate: Gate, node: Any) -> Any:
    from agentrm_langchain.tool_errors import passing_ours
    from agentrm_langchain.tools import gate_tool_with

    gated = copy.copy(node)
    gated._tools_by_name = {name: gate_tool_with(gate, tool) for name, tool in node.tools_by_name.items()}
    gated._handle_tool_errors = passing_ours(node._handle_tool_errors)
    gated.func, gated.afunc = gated._func, gated._afunc  # bound to the copy, not to the node it was made from
    return gated


def _gated_middleware(gate: Gate, middleware: Any) -> Any:
    """A copy whose own models, and chains of them, are gated."""
    parts = {name: (value, _gated_part(gate, value)) for name, value in vars(middleware).items()}
    changed = {name: new for name, (old, new) in parts.items() if new is not old}
    if not changed:
        return middleware
    gated = copy.copy(middleware)
    for name, part in changed.items():
        setattr(gated, name, part)
    return gated


def _gated_chain(gate: Gate, x: Any) -> Any:
    """Sequences, bindings, parallels, fallbacks and the like: a copy in which the parts that can be gated
    are."""
    from langchain_core.runnables import Runnable
    from pydantic import BaseModel

    if isinstance(x, (list, tuple)):
        parts = [_gated_part(gate, part) for part in x]
        return x if all(new is old for new, old in zip(parts, x, strict=True)) else type(x)(parts)
    if isinstance(x, dict):
        named = {key: _gated_part(gate, part) for key, part in x.items()}
        return x if all(named[key] is x[key] for key in x) else named
    if not (isinstance(x, Runnable) and isinstance(x, BaseModel)):
        return x
    changed = {}
    for name, value in vars(x).items():
        part = _gated_part(gate, value)
        if part is not value:
            changed[name] = part
    return x.model_copy(update=changed) if changed else x


def _gated_part(gate: Gate, part: Any) -> Any:
    from langchain_core.runnables import Runnable

    if isinstance(part, Runnable):
        return _gated(gate, part)
    return _gated_chain(gate, part) if type(part) in (list, tuple, dict) else part


def _refusal(x: Any) -> AttachError:
    names = {cls.__name__ for cls in type(x).__mro__}
    if "Pregel" in names:
        why = "a compiled graph has its calls built in"
        return AttachError(x, why, f"{_AGENT}\nor, for a graph of your own, {_GRAPH}")
    if "StateGraph" in names:
        return AttachError(x, "the nodes of a graph are functions; what they call can't be seen", _GRAPH)
    if "RunnableLambda" in names or "RunnableGenerator" in names:
        return AttachError(
            x, "what the function calls can't be seen", "model = rm.attach(model)  # and use that one in it"
        )
    if "_ConfigurableModel" in names:
        why = "which model it is gets known only when it runs"
        return AttachError(x, why, f"model = rm.attach(init_chat_model(...))\nor {_AGENT}")
    return AttachError(
        x, "it holds no model and no tool that could be gated", "model = rm.attach(model)  # the model itself"
    )
