"""What `rm.attach` does with the parts of the Agent Framework."""

from __future__ import annotations

import copy
from typing import Any

from agentrm.adapters import AttachError

__all__ = ["AgentFrameworkAdapter", "adapter"]


class AgentFrameworkAdapter:
    """Agents, chat clients, function tools."""

    name = "maf"
    packages = ("agent_framework",)

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        from agent_framework import BaseChatClient, FunctionTool

        from agentrm_maf.clients import gate_client
        from agentrm_maf.tools import gate_tool

        if isinstance(x, BaseChatClient):
            return gate_client(rm, x, **options)
        if isinstance(x, FunctionTool):
            return gate_tool(rm, x, **options)
        if hasattr(x, "client") and hasattr(x, "default_options"):
            return _agent(rm, x, options)
        raise AttachError(x, "it makes no calls of its own", "agent = rm.attach(agent)  # each agent of a workflow")


adapter = AgentFrameworkAdapter()


def _agent(rm: Any, agent: Any, options: dict[str, Any]) -> Any:
    """A copy with a gated client and gated tools, known to the manager by the agent's name."""
    from agent_framework import BaseChatClient, FunctionTool

    from agentrm_maf.clients import gate_client_with
    from agentrm_maf.gating import make_gate
    from agentrm_maf.tools import gate_tool_with

    if not isinstance(agent.client, BaseChatClient):
        raise AttachError(agent, f"its client, a {type(agent.client).__name__}, is no BaseChatClient", None)
    gate = make_gate(rm, "attach", options, agent.name)
    gated = copy.copy(agent)
    gated.client = gate_client_with(gate, agent.client)
    tools = agent.default_options.get("tools", ())
    kept = {**agent.default_options}
    if tools:
        kept["tools"] = [gate_tool_with(gate, tool) if isinstance(tool, FunctionTool) else tool for tool in tools]
    gated.default_options = kept
    return gated
