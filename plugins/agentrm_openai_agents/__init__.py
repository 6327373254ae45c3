"""agentrm for the OpenAI Agents SDK: every model and tool call of an agent goes through one resource manager.

    agent = rm.attach(agent)                    # its model, its tools, and the agents that it hands off to
    result = await Runner.run(agent, "...")

Importing this package loads no framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_openai_agents.attaching import adapter
    from agentrm_openai_agents.models import GatedModel, GatedProvider

_HOME = {"GatedModel": "models", "GatedProvider": "models", "adapter": "attaching"}
__all__ = ["GatedModel", "GatedProvider", "adapter"]

__getattr__ = lazy(__name__, _HOME, extra="openai-agents")
