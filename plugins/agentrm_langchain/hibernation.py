"""Putting a LangGraph thread to sleep in one file, and bringing it back in another process or on another
machine.

A running graph is stopped with `RunControl().request_drain(...)`, given to it as `invoke(...,
control=control)`: it ends with GraphDrained after the current step, with its checkpoint saved. Then:

    file = hibernate_thread(saver, "thread-1")
    ...
    thread = restore_thread(saver_elsewhere, file)
    graph.invoke(None, {"configurable": {"thread_id": thread}})
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrm.context.convert_langchain import from_langchain
from agentrm.context.messages import Message
from agentrm.context.sessions import Session
from agentrm_langchain.checkpoint import SessionSaver

__all__ = ["hibernate_thread", "restore_thread"]


def hibernate_thread(saver: SessionSaver, thread_id: str, *, status: str = "active") -> Path:
    """Writes the thread into one file: checkpoints, pending writes and, readable, its messages.

    Raises SessionLocked, WriteFailed, StorageFull.
    """
    session = saver.sessions.open(thread_id, tenant=saver.tenant)
    try:
        found = saver.get_tuple({"configurable": {"thread_id": thread_id}})
        said = found.checkpoint["channel_values"].get("messages", []) if found is not None else []
        _mirror(session, from_langchain(said))
        session.set_status(status)
        return Path(session.hibernate())
    finally:
        session.close()


def restore_thread(saver: SessionSaver, source: str | Path, *, as_thread: str | None = None) -> str:
    """Brings a thread back from its file (or its name, if it was hibernated here) and returns its id.

    Calls that have no result yet are LangGraph's to run, so they stay open in the session. Raises what
    `SessionStore.restore` raises.
    """
    with saver.sessions.restore(source, tenant=saver.tenant, as_session=as_thread) as session:
        saver.mark(session.id)
        return session.id


def _mirror(session: Session, messages: Sequence[Message]) -> None:
    """Adds what the thread said since; a message that was changed under its id is added anew."""
    held = {message.id: message for message in session.verbatim()}
    for message in messages:
        number = 1
        fresh = message
        while fresh.id in held and held[fresh.id] != fresh:
            number += 1
            fresh = replace(message, id=f"{message.id}~{number}")
        if fresh.id not in held:
            session.append(fresh)
            held[fresh.id] = fresh
    for call in session.open_calls():
        session.start_call(call.id, safe=True)
