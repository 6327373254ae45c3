"""Keeping a session's messages equal to a conversation that a framework keeps itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrm.context.messages import Message
from agentrm.context.sessions.session import Session

__all__ = ["mirror"]


def mirror(session: Session, messages: Sequence[Message]) -> None:
    """Appends what was said since; a message that was changed under its id is added anew. Raises as `append` does."""
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
