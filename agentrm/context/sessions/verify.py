"""Is everything that a session needs there and sound? Reads only; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrm.context.pairs import find_breaks
from agentrm.context.sessions.hibernation import read_hibernated
from agentrm.context.sessions.sleep import refuse_fork
from agentrm.context.sessions.store import SessionStore
from agentrm.errors import AgentRMError

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found. `problems` is empty for a sound session; each line says what is wrong and where.

    A record cut off at the end is a note: it was never acknowledged, or a power cut took what was not synced.
    """

    session: str
    records: int
    messages: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def verify(store: SessionStore, session: str, *, tenant: str = "default") -> Verified:
    """Checks every record and message of the journal, the views made from them, and the hibernation file, if
    any.

    Raises SessionNotFound, WrongKey, SchemaTooNew.
    """
    held = store.read(session, tenant=tenant)
    problems: list[str] = []
    notes: list[str] = []
    for warning in held.warnings:
        (notes if "cut off at the end" in warning else problems).append(warning)
    for entry in held.state.entries:
        try:
            message = held.recall(entry.id)
        except (AgentRMError, ValueError) as error:
            problems.append(f"message {entry.id} can't be read: {error}")
            continue
        if message.id != entry.id:
            problems.append(f"message {entry.id} names itself {message.id}")
    if not problems:
        problems += [f"conversation: {item.kind} {item.call_id}" for item in find_breaks(held.messages())]
        problems += [f"context: {item.kind} {item.call_id}" for item in find_breaks(held.tier0())]
    open_calls = [call.id for call in held.state.pending.values()]
    if open_calls:
        notes.append(f"{len(open_calls)} calls have no result yet: {', '.join(open_calls[:5])}")
    path = store.layout.hibernated(tenant, session)
    if path.exists():
        problems += _hibernation_problems(store, path, tenant, session)
    return Verified(session, held.records, len(held), tuple(problems), tuple(notes))


def _hibernation_problems(store: SessionStore, path: Path, tenant: str, session: str) -> list[str]:
    try:
        file = read_hibernated(path, sealer=store.sealer)
        refuse_fork(f"{tenant}/{session}", path, store.replay(session, tenant=tenant), file)
    except AgentRMError as error:
        return [f"hibernation file: {error}"]
    return []
