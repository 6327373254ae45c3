"""Tool calls of a kept crew at most once, also when the process is killed in the middle of one, or CrewAI runs the task
again.

The start and the end of each call are logged with the session. The same call in a later run of the same task is
answered from the log; one that started and did not end is answered with "outcome unknown", unless its tool is safe to
run again. An error of a tool is an end that may be tried again, by whoever decides to; a call whose lease was taken
away may go on out of sight, so its outcome is unknown, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from crewai.tools.base_tool import BaseTool
from crewai.tools.tool_failure import ToolFailure
from pydantic_core import to_jsonable_python

from agentrm.adapters import on_thread
from agentrm.context.open_calls import shown_text
from agentrm.context.sessions import Session
from agentrm.errors import LeaseError
from agentrm_crewai.gating import Work

__all__ = ["CallLog"]

_OWN = ("crewai.tools.agent_tools", "crewai.tools.memory_tools", "crewai.skills")
"""CrewAI's own tools that run other agents, whose calls are logged themselves, or only read."""
_Entry = dict[str, Any]


class CallLog:
    """The calls of one session. `safe_tools`: names of those that may run again when their outcome is unknown."""

    def __init__(self, session: Session, safe_tools: Collection[str] = ()) -> None:
        self._session, self._safe = session, frozenset(safe_tools)

    def once(self, work: Work, tool: BaseTool, asked: Any, run: Callable[[], Any]) -> Any:
        """`run()`, or what it returned when it was run before."""
        if type(tool).__module__.startswith(_OWN):
            return run()
        name = _name(work, tool, asked)
        known = self._begin(name, tool)
        if known is not None:
            return known["result"]
        try:
            result = run()
        except BaseException as error:
            self._failed(name, tool, error)
            raise
        self._end(name, result)
        return result

    async def aonce(self, work: Work, tool: BaseTool, asked: Any, run: Callable[[], Awaitable[Any]]) -> Any:
        if type(tool).__module__.startswith(_OWN):
            return await run()
        name = _name(work, tool, asked)
        known = await on_thread(lambda: self._begin(name, tool))
        if known is not None:
            return known["result"]
        try:
            result = await run()
        except BaseException as error:
            # Not in a thread: a cancelled task would be cancelled again while it waits for it.
            self._failed(name, tool, error)
            raise
        await on_thread(lambda: self._end(name, result))
        return result

    def _begin(self, name: str, tool: BaseTool) -> _Entry | None:
        """Logs the start and returns None, or returns the entry of a call that is not to be run."""
        entry = self._read(name)
        if entry is not None and "result" in entry:
            return entry
        if entry is not None and entry["state"] == "started" and tool.name not in self._safe:
            return {"result": shown_text("interrupted")}
        self._write(name, {"state": "started"})
        return None

    def _end(self, name: str, result: Any) -> None:
        if isinstance(result, ToolFailure):  # it was not run: its number of uses is used up
            self._write(name, {"state": "failed"})
        else:
            self._write(name, {"state": "ended", "result": to_jsonable_python(result, fallback=str)})

    def _failed(self, name: str, tool: BaseTool, error: BaseException) -> None:
        if isinstance(error, LeaseError) and tool.name not in self._safe:
            self._end(name, shown_text("interrupted"))
        elif isinstance(error, Exception):
            self._write(name, {"state": "failed"})
        else:
            self._end(name, shown_text("cancelled"))

    def _read(self, name: str) -> _Entry | None:
        data = self._session.framework_state(name)
        return None if data is None else json.loads(data)

    def _write(self, name: str, entry: _Entry) -> None:
        self._session.save_framework_state(name, json.dumps(entry).encode())


def _name(work: Work, tool: BaseTool, asked: Any) -> str:
    """Task, tool, arguments, and which of the equal calls of this run of the task it is."""
    said = json.dumps([work.task, tool.name, to_jsonable_python(asked, fallback=str)], sort_keys=True)
    digest = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
    return f"crewai-calls/{digest}/{work.nth(digest)}"
