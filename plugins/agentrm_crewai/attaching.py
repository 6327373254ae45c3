"""What `rm.attach(x)` does for an object of CrewAI."""

from __future__ import annotations

from typing import Any

from agentrm.adapters import AttachError

__all__ = ["CrewAIAdapter", "adapter"]


class CrewAIAdapter:
    """LLMs and tools (copies), agents, crews, flows and memories (in place, with every LLM and tool in them)."""

    name = "crewai"
    packages = ("crewai",)

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        from crewai.agents.agent_builder.base_agent import BaseAgent
        from crewai.crew import Crew
        from crewai.flow.flow import Flow
        from crewai.llms.base_llm import BaseLLM
        from crewai.memory.unified_memory import Memory
        from crewai.tools.base_tool import BaseTool

        from agentrm.adapters.copies import gate_of
        from agentrm_crewai.containers import attach_all
        from agentrm_crewai.gating import make_gate

        if not isinstance(x, (BaseLLM, BaseTool, BaseAgent, Crew, Flow, Memory)):
            why = "it is no LLM, tool, agent, crew, flow or memory"
            raise AttachError(x, why, "crew = rm.attach(crew)  # the crew, agent or flow that it belongs to")
        attached = attach_all(make_gate(rm, "attach", options), x)
        if (found := gate_of(attached)) is not None:
            found[0].root = attached
        return attached


adapter = CrewAIAdapter()
