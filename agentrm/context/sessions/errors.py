"""What can go wrong with a session, and the way on from each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.errors import AgentRMError

if TYPE_CHECKING:
    from agentrm.context.messages import Message
    from agentrm.context.sessions.owner import Owner

__all__ = [
    "CallFinished",
    "MessageConflict",
    "MessageNotFound",
    "NotAuthorised",
    "OutcomeUnknown",
    "SessionClosed",
    "SessionDraining",
    "SessionError",
    "SessionExists",
    "SessionForked",
    "SessionLocked",
    "SessionLost",
    "SessionNotFound",
]


class SessionError(AgentRMError):
    """Base of the errors of sessions. What was acknowledged before stays."""


class SessionNotFound(SessionError, LookupError):
    """The tenant has no session of that name."""

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant, self.session = tenant, session
        super().__init__(
            f"tenant {tenant!r} has no session {session!r}. `agentrm sessions list` shows them; "
            "open it with create=True to begin it."
        )


class SessionExists(SessionError):
    """A session of that name is there already."""

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant, self.session = tenant, session
        super().__init__(f"tenant {tenant!r} has a session {session!r} already. Open that one or choose another name.")


class SessionLocked(SessionError):
    """Somebody else owns the session. `owner` says who; the session was not touched."""

    def __init__(self, name: str, owner: Owner | None) -> None:
        self.owner = owner
        who = f"process {owner.pid} on {owner.host} since {owner.since:.0f}" if owner else "another process"
        super().__init__(
            f"session {name} is owned by {who}. Let it close or hibernate the session, or, if it is "
            "known to be gone, open with takeover=True."
        )


class SessionLost(SessionError):
    """This object owns the session no longer:

    it was taken over, or the process is a fork. Nothing was stored.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"session {name} {why}. Nothing was stored; open it again from the store.")


class SessionClosed(SessionError):
    """The session object was closed or hibernated. Nothing was stored."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(f"session {name} is {how}. Nothing was stored; open or restore it from the store.")


class SessionDraining(SessionError):
    """The session is about to hibernate and starts no new work. Queue messages instead (`enqueue`)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"session {name} is draining: it starts no new calls. Queue the work with enqueue().")


class SessionForked(SessionError):
    """A hibernation file and the session of that name in the store went different ways."""

    def __init__(self, name: str, path: str, at: int) -> None:
        self.at = at
        super().__init__(
            f"session {name} in the store and in {path} differ from record {at} on. Nothing was changed; "
            "restore the file under another name (as_session=)."
        )


class MessageNotFound(SessionError, LookupError):
    """The session has no message of that id."""

    def __init__(self, name: str, message_id: str) -> None:
        super().__init__(f"session {name} has no message {message_id!r}. Use search() to find ids.")


class MessageConflict(SessionError, ValueError):
    """A message can't be added as it is: its id or its call's result is there already, with other content."""


class CallFinished(SessionError):
    """The call has its result already and is not run again. `message` holds the result."""

    def __init__(self, call_id: str, message: Message) -> None:
        self.call_id, self.message = call_id, message
        super().__init__(f"call {call_id!r} has its result already; it is not run again. Use .message.")


class OutcomeUnknown(SessionError):
    """The call was started before and did not end. Whether it did its work is unknown: it is not run again."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        super().__init__(
            f"call {call_id!r} was started before and its outcome is unknown. Find out and append its "
            "result, or run it as safe=True if doing it twice does no harm."
        )


class NotAuthorised(SessionError, PermissionError):
    """The store's `authorise` hook said no. Nothing was done."""

    def __init__(self, action: str, tenant: str, session: str) -> None:
        self.action, self.tenant, self.session = action, tenant, session
        super().__init__(f"{action} of session {session!r} of tenant {tenant!r} is not authorised.")
