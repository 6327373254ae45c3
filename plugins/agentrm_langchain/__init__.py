"""agentrm for LangChain and LangGraph: every model and tool call of an agent goes through one resource
manager.

    agent = create_agent(model, tools, middleware=[AgentRMMiddleware(rm)])
    model = rm.attach(model)            # the same for a model, a tool, a list of tools, a ToolNode, a chain

Importing this package loads neither framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_langchain.attaching import adapter
    from agentrm_langchain.chat_local import ChatLocal
    from agentrm_langchain.compaction import CompactionMiddleware
    from agentrm_langchain.errors import ModelIdleTimeout, ModelRunTimeout
    from agentrm_langchain.middleware import AgentRMMiddleware
    from agentrm_langchain.models import gate_model
    from agentrm_langchain.tools import gate_tool, gate_tools, tool_node

_HOME = {
    "AgentRMMiddleware": "middleware",
    "ChatLocal": "chat_local",
    "CompactionMiddleware": "compaction",
    "ModelIdleTimeout": "errors",
    "ModelRunTimeout": "errors",
    "adapter": "attaching",
    "gate_model": "models",
    "gate_tool": "tools",
    "gate_tools": "tools",
    "tool_node": "tools",
}
__all__ = [
    "AgentRMMiddleware",
    "ChatLocal",
    "CompactionMiddleware",
    "ModelIdleTimeout",
    "ModelRunTimeout",
    "adapter",
    "gate_model",
    "gate_tool",
    "gate_tools",
    "tool_node",
]

__getattr__ = lazy(__name__, _HOME, extra="langchain")
