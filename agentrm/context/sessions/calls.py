"""Running a tool call of a session at most once: its start is logged before, its end after, whatever the end
is.

Every way out of the tool writes exactly one result: what it returned, its error, or "cancelled". The error
itself goes on to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from agentrm.context.messages import Message
from agentrm.context.open_calls import shown_text
from agentrm.context.sessions.errors import CallFinished
from agentrm.context.sessions.session import Session

__all__ = ["Running", "arun_call", "run_call", "running"]


class Running:
    """A call that runs now. `finish` stores its result; without it, leaving the block stores an empty one."""

    __slots__ = ("_session", "call_id", "ended", "message")

    def __init__(self, session: Session, call_id: str) -> None:
        self._session, self.call_id = session, call_id
        self.message: Message | None = None
        self.ended = False

    def finish(self, result: str | Message, *, is_error: bool = False) -> Message:
        """Stores the result at once. If that fails, the result waits in memory (`Session.finish_call`)."""
        self.ended = True
        self.message = self._session.finish_call(self.call_id, result, is_error=is_error)
        return self.message


@contextmanager
def running(session: Session, call_id: str, *, safe: bool = False) -> Iterator[Running]:
    """The block in which a call does its work. `safe` says that doing it twice does no harm.

    Raises CallFinished if the call has its result, OutcomeUnknown if an owner that died had started it
    (unless safe), SessionDraining; the block is not entered then.
    """
    session.start_call(call_id, safe=safe)
    with _started(session, call_id) as run:
        yield run


@contextmanager
def _started(session: Session, call_id: str) -> Iterator[Running]:
    run = Running(session, call_id)
    try:
        yield run
    except Exception as error:
        if not run.ended:
            run.finish(f"[error] {type(error).__name__}: {error}", is_error=True)
        raise
    except BaseException:  # cancelled, interrupted, or the process is to end: the transcript stays valid
        if not run.ended:
            run.finish(shown_text("cancelled"), is_error=True)
        raise
    if not run.ended:
        run.finish("")


def run_call(session: Session, call_id: str, tool: Callable[[], str], *, safe: bool = False) -> Message:
    """Runs the call unless it has its result already, and returns the result's message."""
    try:
        session.start_call(call_id, safe=safe)
    except CallFinished as finished:
        return finished.message
    with _started(session, call_id) as run:
        return run.finish(tool())


async def arun_call(
    session: Session, call_id: str, tool: Callable[[], Awaitable[str]], *, safe: bool = False
) -> Message:
    """`run_call` for coroutines. The start, which may be synced, is logged in a thread."""
    starting = asyncio.ensure_future(asyncio.to_thread(session.start_call, call_id, safe=safe))
    try:
        await asyncio.shield(starting)
    except CallFinished as finished:
        return finished.message
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            session.finish_call(call_id, shown_text("cancelled"), is_error=True)
        raise
    with _started(session, call_id) as run:
        return run.finish(await tool())
