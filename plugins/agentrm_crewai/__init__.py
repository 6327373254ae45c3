"""agentrm for CrewAI: every LLM call and tool call of a crew goes through one resource manager.

    crew = rm.attach(crew)              # the same for an agent, a flow, an LLM, a tool

Importing this package does not load CrewAI; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_crewai.attaching import adapter
    from agentrm_crewai.checkpoints import keep_in
    from agentrm_crewai.llms import gate_llm
    from agentrm_crewai.tools import gate_tool

_HOME = {"adapter": "attaching", "gate_llm": "llms", "gate_tool": "tools", "keep_in": "checkpoints"}
__all__ = ["adapter", "gate_llm", "gate_tool", "keep_in"]

__getattr__ = lazy(__name__, _HOME, extra="crewai")
