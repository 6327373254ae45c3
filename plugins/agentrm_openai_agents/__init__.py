"""agentrm for the OpenAI Agents SDK: every model and tool call of an agent goes through one resource manager.

    agent = rm.attach(agent)                    # its model, its tools, and the agents that it hands off to
    result = await Runner.run(agent, "...")

Importing this package loads no framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrm_openai_agents.attaching import adapter
    from agentrm_openai_agents.models import GatedModel, GatedProvider

_HOME = {"GatedModel": "models", "GatedProvider": "models", "adapter": "attaching"}
__all__ = ["GatedModel", "GatedProvider", "adapter"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
