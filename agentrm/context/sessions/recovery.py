"""What happens when a session is opened: which calls are lost, which may run again, what else is gone.

| a call without a result ...                                   | becomes                         |
|---------------------------------------------------------------|---------------------------------|
| waits for approval                                            | open still, unless time is up   |
| is marked safe (at its start, or its tool in `safe_tools`)    | open still, `rerunnable`        |
| never started, in a session that logs starts                  | open still, `rerunnable`        |
| started without an end, or the session logs no starts         | "outcome unknown", durably, once |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from agentrm.context.open_calls import AWAITING_APPROVAL
from agentrm.context.sessions.resources import Checker, lost_resources, notice

if TYPE_CHECKING:
    from agentrm.context.sessions.session import Session
    from agentrm.context.sessions.state import Pending, SessionState

__all__ = ["may_run_again", "recover"]


def may_run_again(call: Pending, state: SessionState, tool: str, safe_tools: Collection[str]) -> bool:
    """Whether running an open call of a former owner can't do its work a second time."""
    if call.safe or tool in safe_tools:
        return True
    return state.logs_calls and call.nonce is None


def recover(
    session: Session,
    state: SessionState,
    *,
    warnings: tuple[str, ...],
    predecessor: int | None,
    safe_tools: Collection[str],
    checkers: Mapping[str, Checker],
) -> None:
    """Brings a freshly opened session into order and sets `session.recovered`. Doing it again changes
    nothing.
    """
    from agentrm.context.sessions.session import Recovery

    expired = session.expire()
    interrupted, rerunnable, awaiting = [], [], []
    for call in session.open_calls():
        names = {c.id: c.name for c in session.recall(call.message_id).calls}
        if call.state == AWAITING_APPROVAL:
            awaiting.append(call.id)
        elif may_run_again(call, state, names.get(call.id, ""), safe_tools):
            rerunnable.append(call.id)
        else:
            session.close_call(call.id, "interrupted", replaceable=True)
            interrupted.append(call.id)
    lost = lost_resources(session.resources(), checkers)
    told = session.get("lost_resources", {})
    if lost != told:
        fresh = {name: wrong for name, wrong in lost.items() if told.get(name) != wrong}
        if fresh:
            session.notify(notice(fresh))
        session.set("lost_resources", lost or None)
    if predecessor is not None and session.status == "active":
        session.set_status("interrupted")
    session.recovered = Recovery(
        warnings,
        tuple(interrupted),
        tuple(rerunnable),
        tuple(awaiting),
        expired,
        tuple(lost),
        predecessor,
    )
