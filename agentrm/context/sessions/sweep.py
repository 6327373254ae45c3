"""Putting idle sessions to sleep, and waking them all up, with a word about each that could not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrm.context.sessions.errors import SessionLocked
from agentrm.context.sessions.session import Session
from agentrm.context.sessions.store import SessionStore
from agentrm.errors import AgentRMError

__all__ = ["Swept", "Woken", "sweep", "wake"]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: names of sessions, and of the others why not."""

    hibernated: tuple[str, ...]
    kept: Mapping[str, str]
    failed: Mapping[str, AgentRMError]


@dataclass(frozen=True, slots=True)
class Woken:
    """The sessions that are open again, by name, and why the others are not."""

    sessions: Mapping[str, Session]
    failed: Mapping[str, AgentRMError]


def sweep(store: SessionStore, *, idle_s: float = 1800.0, tenant: str = "default") -> Swept:
    """Hibernates every session that was idle for `idle_s` seconds, whatever its last run came to.

    Kept are those that wait for a person's approval, and those that another process holds.
    """
    hibernated: list[str] = []
    kept: dict[str, str] = {}
    failed: dict[str, AgentRMError] = {}
    live = {session.id: session for session in store.live() if session.tenant == tenant}
    for card in store.list(tenant=tenant):
        if card.hibernated is not None:
            continue
        session = live.get(card.session)
        opened_here = session is None
        try:
            if session is None:
                session = store.open(card.session, tenant=tenant, create=False)
            reason = _reason_to_keep(session, store.now(), idle_s, opened_here)
            if reason is None:
                session.hibernate()
                hibernated.append(card.session)
                continue
            kept[card.session] = reason
            if opened_here:
                session.close()
        except SessionLocked as locked:
            kept[card.session] = f"in use by process {locked.owner.pid}" if locked.owner else "in use"
        except AgentRMError as error:
            failed[card.session] = error
    return Swept(tuple(hibernated), kept, failed)


def _reason_to_keep(session: Session, now: float, idle_s: float, opened_here: bool) -> str | None:
    if session.status == "awaiting_approval":
        return "waits for approval"
    idle = now - (session.active_before_opening if opened_here else session.last_active)
    return None if idle >= idle_s else f"idle for {max(idle, 0):.0f} of {idle_s:.0f} s"


def wake(store: SessionStore, *, tenant: str = "default") -> Woken:
    """Restores every hibernated session of the tenant, with the status it had."""
    sessions: dict[str, Session] = {}
    failed: dict[str, AgentRMError] = {}
    for card in store.list(tenant=tenant):
        if card.hibernated is None:
            continue
        try:
            sessions[card.session] = store.restore(card.session, tenant=tenant)
        except AgentRMError as error:
            failed[card.session] = error
    return Woken(sessions, failed)
