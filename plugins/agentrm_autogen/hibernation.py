"""Putting a team or an agent to sleep in one file, and bringing it back in another process or on another machine.

A running team is stopped first, with a termination condition (`ExternalTermination().set()`): AutoGen's state of a team
that runs is not consistent. Then:

    file = await hibernate(sessions, team, "trip-42")
    ...
    await restore(sessions_elsewhere, file, team_made_the_same_way)
    await team_made_the_same_way.run(task="And the hotel?")
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autogen_agentchat.base import ChatAgent, Team
from autogen_core.tools import Workbench

from agentrm.context.convert_autogen import from_autogen
from agentrm.context.messages import Message, Part, Text, ToolCall, ToolResult
from agentrm.context.sessions import Session, SessionError, SessionStore, mirror
from agentrm_autogen.context import MESSAGES

__all__ = ["TeamRunning", "awake", "hibernate", "refuse_running", "restore", "saved", "workbenches_in"]

_NAME = "autogen"


class TeamRunning(SessionError):
    """The team runs: what it would save now is not consistent. Nothing was written."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"team {name!r} is running. Stop it first: give it a termination_condition=ExternalTermination(), call "
            "set() on that, and await the run."
        )


async def hibernate(
    sessions: SessionStore, runner: Any, session: str, *, tenant: str = "default", status: str = "active"
) -> Path:
    """Writes a team or agent that does not run into one file: its state, that of its workbenches, which AutoGen leaves
    out, and, readable, what was said.

    Raises TeamRunning, SessionLocked, WriteFailed, StorageFull.
    """
    refuse_running(runner)
    save = await saved(runner)

    def write() -> Path:
        with sessions.open(session, tenant=tenant) as opened:
            save(opened)
            opened.set_status(status)
            return Path(opened.hibernate())

    return await asyncio.to_thread(write)


async def restore(
    sessions: SessionStore, source: str | Path, runner: Any, *, tenant: str = "default", as_session: str | None = None
) -> str:
    """Brings a team or agent back from its file (or its session's name, if it was hibernated here) and returns the
    session's name. `runner` is one that was made the same way and does not run; attach it before or after.

    Raises TeamRunning, SessionError for a file of something else, what `SessionStore.restore` raises, and AutoGen's
    ValueError for a team of other members.
    """
    refuse_running(runner)

    def read() -> tuple[str, bytes | None]:
        with sessions.restore(source, tenant=tenant, as_session=as_session) as opened:
            return opened.id, _state_of(opened)

    name, packed = await asyncio.to_thread(read)
    if packed is None:
        raise SessionError(f"session {name!r} holds no team or agent of AutoGen. It was hibernated by something else.")
    await _load(runner, packed)
    return name


async def awake(session: Session, runner: Any) -> int:
    """Brings a team or agent to where the session has it, if it has one, and returns how many runs that is after."""
    packed = await asyncio.to_thread(_state_of, session)
    return 0 if packed is None else await _load(runner, packed)


async def saved(runner: Any, runs: int = 0) -> Callable[[Session], None]:
    """What writes the state that it has now, after so many runs, into a session; it blocks."""
    state = await runner.save_state()
    workbenches = {key: await workbench.save_state() for key, workbench in workbenches_in(runner)}
    packed = json.dumps({"state": state, "workbenches": workbenches, "runs": runs}).encode()

    def save(session: Session) -> None:
        mirror(session, _said(state))
        session.save_framework_state(_NAME, packed)

    return save


async def _load(runner: Any, packed: bytes) -> int:
    held = json.loads(packed)
    await runner.load_state(held["state"])
    for key, workbench in workbenches_in(runner):
        if key in held["workbenches"]:
            await workbench.load_state(held["workbenches"][key])
    return int(held.get("runs", 0))


def _state_of(session: Session) -> bytes | None:
    return session.framework_state(_NAME)


def refuse_running(runner: Any) -> None:
    if getattr(runner, "_is_running", False):
        raise TeamRunning(runner.name)


def workbenches_in(runner: Any, path: str = "") -> Iterator[tuple[str, Workbench]]:
    """Those of all agents inside, with a name that a team made the same way has, too."""
    path = f"{path}/{runner.name}"
    for value in vars(runner).values():
        for i, part in enumerate(value if isinstance(value, (list, tuple)) else [value]):
            if isinstance(part, Workbench):
                yield f"{path}#{i}", part
            elif isinstance(part, (ChatAgent, Team)):
                yield from workbenches_in(part, path)


def _said(state: Mapping[str, Any]) -> list[Message]:
    """A team's thread, or an agent's context."""
    for part in state.get("agent_states", {}).values():
        if "message_thread" in part:
            return [_neutral(entry) for entry in part["message_thread"]]
    context = state.get("llm_context", {})
    return from_autogen(MESSAGES.validate_python(context.get("messages", [])))


def _neutral(entry: Mapping[str, Any]) -> Message:
    """A message or event of a team's thread."""
    source, content = entry["source"], entry["content"]
    parts: tuple[Part, ...] = tuple(_part(piece) for piece in _pieces(content))
    if any(isinstance(part, ToolResult) for part in parts):
        role = "tool"
    else:
        role = "user" if source == "user" else "assistant"
    return Message(entry["id"], role, parts, source, extra={"autogen_thread": entry["type"]})


def _pieces(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [content]


def _part(piece: Any) -> Part:
    if isinstance(piece, Mapping) and "call_id" in piece:
        return ToolResult(piece["call_id"], piece["content"], bool(piece.get("is_error")), piece.get("name"))
    if isinstance(piece, Mapping) and "arguments" in piece:
        return ToolCall(piece["id"], piece["name"], piece["arguments"])
    return Text(piece if isinstance(piece, str) else json.dumps(piece, ensure_ascii=False))
