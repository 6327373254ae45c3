"""agentrm for the Microsoft Agent Framework: every model and tool call of an agent goes through one resource manager.

    agent = rm.attach(agent)                    # its client and its tools; a client or a tool alone as well
    print(await agent.run("..."))

Importing this package loads no framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrm_maf.attaching import adapter
    from agentrm_maf.clients import gate_client
    from agentrm_maf.tools import gate_tool

_HOME = {"adapter": "attaching", "gate_client": "clients", "gate_tool": "tools"}
__all__ = ["adapter", "gate_client", "gate_tool"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
