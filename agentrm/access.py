"""What the `authorise` hook of a manager is asked: whether a call may be made, of whichever kind.

    def authorise(call: agentrm.AccessRequest) -> bool:
        return call.kind != "tool" or call.tool in allowed[call.agent]

    rm = agentrm.ResourceManager(authorise=authorise)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["AccessRequest", "Authorise"]


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One call before it is queued: the principal (agent, tenant, session), and what it wants. `kind`: model, tool,
    memory, storage, environment or another; `outer`: the kinds and names of the calls that it is nested in, innermost
    first, such as `("tool:research",)`."""

    kind: str
    agent: str
    tenant: str
    session: str | None
    priority: str
    pool: str
    model: str | None
    tool: str | None
    outer: tuple[str, ...] = ()


Authorise = Callable[[AccessRequest], object]
"""Returns a true value to allow the call; a false one refuses it with AccessDenied, and what it raises comes out."""
