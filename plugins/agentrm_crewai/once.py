"""Tool calls of a kept crew at most once, also when the process is killed in the middle of one, or CrewAI runs the task
again. See `agentrm.adapters.once`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from crewai.tools.base_tool import BaseTool
from crewai.tools.tool_failure import ToolFailure
from pydantic_core import to_jsonable_python

from agentrm.adapters import once
from agentrm_crewai.gating import Work

__all__ = ["CallLog"]

_OWN = ("crewai.tools.agent_tools", "crewai.tools.memory_tools", "crewai.skills")
"""CrewAI's own tools that run other agents, whose calls are logged themselves, or only read."""


class CallLog(once.CallLog):
    """The calls of one crew."""

    def encode(self, result: Any) -> Any:
        if isinstance(result, ToolFailure):  # it was not run: its number of uses is used up
            return once.FAILED
        if isinstance(result, Iterator):
            raise TypeError("it would be used up")
        return to_jsonable_python(result, fallback=str)

    def once(self, work: Work, tool: BaseTool, asked: Any, run: Callable[[], Any]) -> Any:
        """`run()`, or what it returned when it was run before."""
        own = type(tool).__module__.startswith(_OWN)
        return run() if own else self.run(_name(work, tool, asked), tool.name, run)

    async def aonce(self, work: Work, tool: BaseTool, asked: Any, run: Callable[[], Awaitable[Any]]) -> Any:
        own = type(tool).__module__.startswith(_OWN)
        return await (run() if own else self.arun(_name(work, tool, asked), tool.name, run))


def _name(work: Work, tool: BaseTool, asked: Any) -> str:
    """Task, tool, arguments, and which of the equal calls of this run of the task it is."""
    digest = once.call_name(work.task, tool.name, to_jsonable_python(asked, fallback=str))
    return f"crewai-calls/{digest}/{work.nth(digest)}"
