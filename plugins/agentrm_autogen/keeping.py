"""A team or agent that is kept in a session: what it has done outlives its process, also one that is killed.

    with store.open("trip-1") as session:
        team = await keep_in(session, rm.attach(make_team()))     # the first time as made, later where it stood
        await team.run(task=...)

AutoGen's state of a team that runs is not consistent, so it is written when a run has ended, before its result is
handed out. A run whose process died is begun again from there, with the same task or a new one; tool calls that it had
made are not made again, see `agentrm.adapters.once`."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_core.tools import ToolResult

from agentrm.adapters import AttachError
from agentrm.adapters.once import FAILED, CallLog, call_name
from agentrm.context.sessions import Session
from agentrm_autogen.hibernation import awake, refuse_running, saved, workbenches_in
from agentrm_autogen.workbench import GatedWorkbench, failed

__all__ = ["keep_in"]

R = TypeVar("R", ChatAgent, Team)


async def keep_in(session: Session, runner: R, *, safe_tools: Collection[str] = ()) -> R:
    """`runner`, an attached team or agent that does not run, from now on kept in the session, and brought to where the
    session has it.

    Its tools are called at most once: the same call of the same agent, as often as one run makes it, is answered from
    the log until a run has ended. `safe_tools` may run again when a crash left their outcome unknown. What an agent or
    a team within a tool calls belongs to that tool's call. One process at a time: the session has one owner. Raises
    AttachError for what is not attached, TeamRunning, and AutoGen's ValueError for a team of other members."""
    refuse_running(runner)
    kept = _Kept(session, runner, safe_tools)
    for place, workbench in workbenches_in(runner):
        if not isinstance(workbench, GatedWorkbench):
            raise AttachError(
                runner, "only an attached team or agent can be kept", "await keep_in(session, rm.attach(team))"
            )
        workbench.log = functools.partial(kept.call, place)
    kept.runs = await awake(session, runner)
    changed: Any = runner
    changed.run_stream = kept.run_stream(runner.run_stream)
    if isinstance(runner, ChatAgent):  # a team's `run` asks its `run_stream`
        changed.run = kept.run(runner.run)
    return runner


class _Log(CallLog):
    def encode(self, result: Any) -> Any:
        return result.model_dump(mode="json") if isinstance(result, ToolResult) and not result.is_error else FAILED


class _Kept:
    """One runner in one session. `runs`: how many have ended."""

    def __init__(self, session: Session, runner: Any, safe_tools: Collection[str]) -> None:
        self._session, self._runner = session, runner
        self._log = _Log(session, safe_tools)
        self._made: Counter[str] = Counter()
        self.runs = 0

    async def call(
        self, place: str, tool: str, arguments: Mapping[str, Any] | None, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        said = call_name(place, tool, dict(arguments or {}))
        self._made[said] += 1
        found = await self._log.arun(f"autogen-calls/{self.runs}/{said}/{self._made[said]}", tool, run)
        if isinstance(found, str):  # it is not known what came of it
            return failed(tool, found)
        return ToolResult.model_validate(found) if isinstance(found, dict) else found

    def run(self, native: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(native)
        async def run(*args: Any, **kwargs: Any) -> Any:
            self._made.clear()
            result = await native(*args, **kwargs)
            await self._save()
            return result

        return run

    def run_stream(self, native: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, None]]:
        @functools.wraps(native)
        async def run_stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            self._made.clear()
            result = None
            async with aclosing(native(*args, **kwargs)) as events:
                async for event in events:
                    if isinstance(event, TaskResult):  # handed out last: whoever waits for it may leave then
                        result = event
                    else:
                        yield event
            if result is not None:
                await self._save()
                yield result

        return run_stream

    async def _save(self) -> None:
        save = await saved(self._runner, self.runs + 1)
        await asyncio.to_thread(save, self._session)
        self.runs += 1
