"""A crew or flow that is kept in a session: what it has done outlives the process, in one file if you like.

    session = store.open("trip-1")
    crew = keep_in(session, rm.attach(build_crew()))     # the first time as built, later where it stood
    crew.kickoff()
    file = session.hibernate()

A checkpoint is written into the session after each task (each method of a flow). It has data and no code: LLMs, tools
and callbacks come from the crew that was built, never from the checkpoint, and secrets are not written. Tools are
called at most once, see `agentrm_crewai.once`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.crew import Crew
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.flow import Flow
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.state.provider.core import BaseProvider
from pydantic import PrivateAttr

from agentrm.adapters import AttachError
from agentrm.adapters.copies import gate_of
from agentrm.context.sessions import Session

__all__ = ["keep_in", "put_back"]

C = TypeVar("C")

_STATE = "crewai"
_SECRETS = ("api_key", "secret_access_key", "session_token", "access_key_id", "password")
_CODE_OF_AGENTS = ("llm", "function_calling_llm", "planning_config", "tools", "step_callback", "guardrail", "memory")
_CODE_OF_TASKS = (
    "tools", "callback", "guardrail", "guardrails", "_guardrail", "_guardrails", "converter_cls", "output_json",
    "output_pydantic", "response_model",
)  # fmt: skip
_CODE_OF_CREWS = (
    "manager_llm", "planning_llm", "chat_llm", "function_calling_llm", "step_callback", "task_callback",
    "before_kickoff_callbacks", "after_kickoff_callbacks", "memory", "_memory", "_rpm_controller",
)  # fmt: skip


class SessionCheckpoints(BaseProvider):
    """Keeps the newest checkpoint with a session."""

    provider_type: str = "agentrm"
    _session: Any = PrivateAttr(default=None)

    def checkpoint(self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main") -> str:
        self._session.save_framework_state(_STATE, json.dumps(_without_secrets(json.loads(data))).encode())
        return location

    async def acheckpoint(self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main") -> str:
        return await asyncio.to_thread(self.checkpoint, data, location)

    def prune(self, location: str, max_keep: int, *, branch: str = "main") -> int:
        return 0

    def extract_id(self, location: str) -> str:
        return location

    def from_checkpoint(self, location: str) -> str:
        state: bytes = self._session.framework_state(_STATE)
        return state.decode()

    async def afrom_checkpoint(self, location: str) -> str:
        return await asyncio.to_thread(self.from_checkpoint, location)


def _keeper(session: Session) -> Callable[[], None]:
    """Writes a checkpoint of what runs here, in its own thread, while nothing changes: CrewAI's own are written beside
    the running crew and are lost where that changes something meanwhile."""
    provider = SessionCheckpoints()
    provider._session = session

    def keep() -> None:
        state = crewai_event_bus.runtime_state
        if state is not None:
            state._provider = provider
            state.checkpoint(f"session {session.id}")

    return keep


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: None if str(key).endswith(_SECRETS) and isinstance(inner, str) else _without_secrets(inner)
            for key, inner in value.items()
        }
    return [_without_secrets(part) for part in value] if isinstance(value, list) else value


def keep_in(session: Session, x: C, *, safe_tools: Collection[str] = ()) -> C:
    """`x`, an attached crew or flow, from now on kept in the session; or, where the session has one already, what it
    has, with the code of `x`. Change tasks that are still to be done on what is returned, then `kickoff()`.

    The tools of a crew's agents are called at most once; `safe_tools` may run again when a crash left their outcome
    unknown. One process at a time: the session has one owner. Raises AttachError for what is not attached, and for an
    agent alone: put it into a crew of one task."""
    from agentrm_crewai.once import CallLog

    found = gate_of(x)
    if isinstance(x, BaseAgent):  # its `kickoff` is one step: CrewAI writes no checkpoint of it
        task = "Task(description=..., expected_output=..., agent=agent)"
        instead = f"keep_in(session, rm.attach(Crew(agents=[agent], tasks=[{task}])))"
        raise AttachError(x, "a kickoff of an agent alone leaves nothing that could be gone on with", instead)
    if found is None or not isinstance(x, (Crew, Flow)):
        raise AttachError(x, "only an attached crew or flow can be kept", "keep_in(session, rm.attach(crew))")
    found[0].log, found[0].keep = CallLog(session, safe_tools), _keeper(session)
    state = session.framework_state(_STATE)
    kept: Any = x
    if state is not None:
        with tempfile.TemporaryDirectory(prefix="agentrm-") as folder:
            path = Path(folder, "checkpoint.json")
            path.write_bytes(state)
            kept = type(x).from_checkpoint(CheckpointConfig(restore_from=path))
    return cast(C, kept)


def put_back(built: Any, restored: Any) -> None:
    """What no checkpoint holds, from the crew that was built into the one that was restored. Agents and tasks are the
    same if they stand at the same place of lists of the same length, else if their texts are the same."""
    if not (isinstance(built, Crew) and isinstance(restored, Crew)):
        return
    _hand_over(built, restored, _CODE_OF_CREWS)
    for made, found in _twins(built.agents, restored.agents):
        _hand_over(made, found, _CODE_OF_AGENTS)
    for made, found in _twins(built.tasks, restored.tasks):
        _hand_over(made, found, _CODE_OF_TASKS)
        if found.agent is not None and found.agent not in restored.agents and made.agent is not None:
            _hand_over(made.agent, found.agent, _CODE_OF_AGENTS)
    if built.manager_agent is not None and restored.manager_agent is not None:
        _hand_over(built.manager_agent, restored.manager_agent, _CODE_OF_AGENTS)


def _twins(built: list[Any], restored: list[Any]) -> Iterable[tuple[Any, Any]]:
    if len(built) == len(restored):
        return zip(built, restored, strict=True)
    by_key = {part.key: part for part in built}
    return [(by_key[part.key], part) for part in restored if part.key in by_key]


def _hand_over(made: Any, found: Any, names: tuple[str, ...]) -> None:
    for name in names:
        for own, other in ((made.__dict__, found.__dict__), (made.__pydantic_private__, found.__pydantic_private__)):
            if name in (own or {}):
                other[name] = own[name]
