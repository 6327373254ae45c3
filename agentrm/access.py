"""What the `authorise` hook of a manager is asked: whether a call may be made, of whichever kind.

    def authorise(call: agentrm.AccessRequest) -> bool:
        return call.kind != "tool" or call.tool in allowed[call.agent]

    rm = agentrm.ResourceManager(authorise=authorise)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.errors import AccessDenied

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease

__all__ = ["AccessRequest", "Authorise", "ask"]


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


def ask(authorise: Authorise, lease: Lease) -> None:
    """Raises AccessDenied if the hook refuses the lease's call."""
    outer, enclosing = [], lease.parent
    while enclosing is not None:
        outer.append(f"{enclosing.route.kind}:{enclosing.tool or enclosing.route.model or enclosing.pool}")
        enclosing = enclosing.parent
    route = lease.route
    asked = AccessRequest(
        route.kind, route.agent, route.tenant, lease.session, route.priority, route.pool.name, route.model, lease.tool,
        tuple(outer),
    )  # fmt: skip
    if not authorise(asked):
        what = lease.tool or route.model or lease.pool
        raise AccessDenied(
            f"agent {route.agent!r} of tenant {route.tenant!r} may not make this {route.kind} call ({what}): the "
            "manager's authorise hook refused it. Nothing was sent; allow it there, or do without",
            pool=lease.pool, agent=route.agent,
        )  # fmt: skip
