"""agentrm for the Microsoft Agent Framework: every model and tool call of an agent goes through one resource manager.

    agent = rm.attach(agent)                    # its client and its tools; a client or a tool alone as well
    print(await agent.run("..."))

Importing this package loads no framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_maf.attaching import adapter
    from agentrm_maf.clients import gate_client
    from agentrm_maf.tools import gate_tool

_HOME = {"adapter": "attaching", "gate_client": "clients", "gate_tool": "tools"}
__all__ = ["adapter", "gate_client", "gate_tool"]

__getattr__ = lazy(__name__, _HOME, extra="maf")
