"""Who is asking: agent, tenant, session and priority, carried by a context variable.

Set it once round an agent's work and every call made inside, in tasks and context-copying threads too, is attributed:

    with agentrm.identity(agent="planner", priority="interactive"):
        graph.invoke(...)
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal, NamedTuple

from agentrm.errors import ConfigError

__all__ = ["PRIORITIES", "Identity", "Priority", "current_identity", "identity"]

Priority = Literal["interactive", "subagent", "background"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "subagent", "background")


class Identity(NamedTuple):
    """What is known about the caller; None where nothing was said."""

    agent: str | None = None
    tenant: str | None = None
    session: str | None = None
    priority: Priority | None = None


NOBODY = Identity()
in_force: ContextVar[Identity] = ContextVar("agentrm_identity", default=NOBODY)


def current_identity() -> Identity:
    """The identity that calls made here and now are attributed to."""
    return in_force.get()


class identity:
    """Context manager (sync and async alike) that sets parts of the identity; what is not given stays as it was."""

    __slots__ = ("_fields", "_token")

    def __init__(
        self,
        agent: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        priority: Priority | None = None,
    ) -> None:
        if priority is not None and priority not in PRIORITIES:
            raise ConfigError("priority", priority, ", ".join(PRIORITIES))
        fields = {"agent": agent, "tenant": tenant, "session": session, "priority": priority}
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._token: Token[Identity] | None = None

    def __enter__(self) -> Identity:
        new = in_force.get()._replace(**self._fields)  # type: ignore[arg-type]
        self._token = in_force.set(new)
        return new

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            in_force.reset(self._token)
            self._token = None

    async def __aenter__(self) -> Identity:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, tb)
