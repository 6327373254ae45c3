"""agentrm for AutoGen: every model and tool call of an agent or a team goes through one resource manager.

    team = rm.attach(team)                            # or an agent, a model client, a workbench
    agent = AssistantAgent("planner", client, model_context=CompactingContext(100_000))

Importing this package does not load AutoGen; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_autogen.attaching import adapter
    from agentrm_autogen.client import GatedClient
    from agentrm_autogen.context import CompactingContext
    from agentrm_autogen.gating import loading
    from agentrm_autogen.hibernation import TeamRunning, hibernate, restore
    from agentrm_autogen.keeping import keep_in
    from agentrm_autogen.workbench import GatedWorkbench

_HOME = {
    "CompactingContext": "context",
    "GatedClient": "client",
    "GatedWorkbench": "workbench",
    "TeamRunning": "hibernation",
    "adapter": "attaching",
    "hibernate": "hibernation",
    "keep_in": "keeping",
    "loading": "gating",
    "restore": "hibernation",
}
__all__ = [
    "CompactingContext",
    "GatedClient",
    "GatedWorkbench",
    "TeamRunning",
    "adapter",
    "hibernate",
    "keep_in",
    "loading",
    "restore",
]

__getattr__ = lazy(__name__, _HOME, extra="autogen")
