"""Sessions: conversations in three tiers that survive crashes, sleep in a file and wake up elsewhere."""

from agentrm.context.sessions.calls import arun_call, run_call, running
from agentrm.context.sessions.errors import (
    CallFinished,
    MessageConflict,
    MessageNotFound,
    NotAuthorised,
    OutcomeUnknown,
    SessionClosed,
    SessionDraining,
    SessionError,
    SessionExists,
    SessionForked,
    SessionLocked,
    SessionLost,
    SessionNotFound,
)
from agentrm.context.sessions.mirror import mirror
from agentrm.context.sessions.resources import Resource
from agentrm.context.sessions.session import Recovery, Session
from agentrm.context.sessions.snapshot import Snapshot
from agentrm.context.sessions.state import Pending, blob_prefix
from agentrm.context.sessions.store import Card, SessionStore
from agentrm.context.sessions.sweep import Swept, Woken, sweep, wake
from agentrm.context.sessions.verify import Verified, verify
from agentrm.context.sessions.view import Compactor, Hit

__all__ = [
    "CallFinished",
    "Card",
    "Compactor",
    "Hit",
    "MessageConflict",
    "MessageNotFound",
    "NotAuthorised",
    "OutcomeUnknown",
    "Pending",
    "Recovery",
    "Resource",
    "Session",
    "SessionClosed",
    "SessionDraining",
    "SessionError",
    "SessionExists",
    "SessionForked",
    "SessionLocked",
    "SessionLost",
    "SessionNotFound",
    "SessionStore",
    "Snapshot",
    "Swept",
    "Verified",
    "Woken",
    "arun_call",
    "blob_prefix",
    "mirror",
    "run_call",
    "running",
    "sweep",
    "verify",
    "wake",
]
