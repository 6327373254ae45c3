"""What `rm.attach` does with the parts of the Agents SDK."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from agentrm.adapters import AttachError, ToolUse, acall, read_options
from agentrm.adapters.copies import Gate

__all__ = ["AgentsAdapter", "adapter"]


class AgentsAdapter:
    """Agents with all that they hand off to, models, providers of models, run configurations, function tools."""

    name = "openai-agents"
    packages = ("agents",)

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        from agents import Agent, FunctionTool, Model, ModelProvider, RunConfig

        from agentrm_openai_agents.models import GatedProvider

        gate = Gate(rm, *read_options("attach", options))
        if isinstance(x, Agent):
            return _agent(gate, x, {})
        if isinstance(x, Model):
            return _model(gate, x, None)
        if isinstance(x, ModelProvider):
            return GatedProvider(gate, x)
        if isinstance(x, RunConfig):
            model = x.model if x.model is None or isinstance(x.model, str) else _model(gate, x.model, None)
            return dataclasses.replace(x, model=model, model_provider=GatedProvider(gate, x.model_provider))
        if isinstance(x, FunctionTool):
            return _tool(gate, x, None)
        raise AttachError(x, "it makes no calls of its own", "agent = rm.attach(agent)")


adapter = AgentsAdapter()


def _agent(gate: Gate, agent: Any, seen: dict[int, Any]) -> Any:
    """A copy whose model, function tools and handoffs are gated. Agents may hand off to each other in circles."""
    from agents import Agent, FunctionTool

    if id(agent) in seen:
        return seen[id(agent)][1]
    gated = agent.clone()
    seen[id(agent)] = agent, gated  # with the original, so that no id is used again
    gated.model = _model(gate, agent.model, agent.name)
    gated.tools = [_tool(gate, t, agent.name) if isinstance(t, FunctionTool) else t for t in agent.tools]
    gated.handoffs = [(_agent if isinstance(h, Agent) else _handoff)(gate, h, seen) for h in agent.handoffs]
    return gated


def _handoff(gate: Gate, handoff: Any, seen: dict[int, Any]) -> Any:
    """The agent that takes over is known only when it does."""

    async def on_invoke_handoff(context: Any, arguments: str) -> Any:
        return _agent(gate, await handoff.on_invoke_handoff(context, arguments), {**seen})

    gated = copy.copy(handoff)
    gated.on_invoke_handoff = on_invoke_handoff
    return gated


def _model(gate: Gate, model: Any, agent: str | None) -> Any:
    """Of a model, of the name of one, or of the SDK's default (None)."""
    from agents import MultiProvider

    from agentrm_openai_agents.models import GatedModel

    if isinstance(model, GatedModel) and gate.replaces(model.gate):  # not gated twice
        return GatedModel(gate.over(model.gate), lambda: model.model, agent or model.agent)
    if model is None or isinstance(model, str):
        return GatedModel(gate, lambda: MultiProvider().get_model(model), agent)
    return GatedModel(gate, lambda: model, agent)


def _tool(gate: Gate, tool: Any, agent: str | None) -> Any:
    """A copy that runs under a lease. Its time-out counts from the grant on, not from the wait for it."""
    from agents.tool import invoke_function_tool

    from agentrm_openai_agents.models import spec_of

    before = getattr(tool.on_invoke_tool, "gates", None)
    if before is not None and gate.replaces(before[0]):  # not gated twice
        gate, agent, tool = gate.over(before[0]), agent or before[1], before[2]

    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        spec = spec_of(gate, agent, kind="tool", tool=tool.name, use=ToolUse(lambda: arguments))
        return await acall(
            gate.rm, spec, lambda: invoke_function_tool(function_tool=tool, context=context, arguments=arguments)
        )

    on_invoke_tool.gates = (gate, agent, tool)  # type: ignore[attr-defined]
    gated = copy.copy(tool)
    gated.on_invoke_tool, gated.timeout_seconds = on_invoke_tool, None
    return gated
