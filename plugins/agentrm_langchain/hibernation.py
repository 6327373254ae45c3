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

from pathlib import Path

from agentrm.context.convert_langchain import from_langchain
from agentrm.context.sessions import mirror
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
        mirror(session, from_langchain(said))
        for call in session.open_calls():
            session.start_call(call.id, safe=True)
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
