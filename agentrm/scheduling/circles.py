"""Whether a tool call that is about to wait would wait for ever: for itself, through the calls that it is nested in.

A tool that runs an agent holds its lane and its conflict groups while the agent's tool calls wait for theirs. Two such
tools may wait for each other, or a call for the very group that its enclosing call is in. Nobody else can tell, so the
call that closes the circle is refused.

Found by exclusion: of all calls that wait within others those are struck off that can run once everything ends that
waits for none of them. What is left waits for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.errors import WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["refuse_circle"]


def refuse_circle(rm: ResourceManager, lease: Lease) -> None:
    """Raises WouldDeadlock if the nested `lease`, which is in the queue, can never be granted."""
    waiting = [one for one in list(rm.gate.queued.values()) if one.parent is not None]
    running = [one for one in list(rm.gate.leases.values()) if one.state == "running"]
    while True:
        stuck = {id(outer) for one in waiting for outer in _enclosing(one)}
        holders = [one for one in running if id(one) in stuck]
        left = [one for one in waiting if not _fits_beside(rm, one, holders)]
        if len(left) == len(waiting):
            break
        waiting = left
    if any(one is lease for one in waiting):
        raise _refusal(lease)


def _enclosing(lease: Lease) -> Iterator[Lease]:
    outer = lease.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def _fits_beside(rm: ResourceManager, lease: Lease, holders: list[Lease]) -> bool:
    """Whether the call could run if nothing ran but `holders`, which wait for calls within them."""
    own = lease.route.pool.index
    rides = any(outer.route.pool.index == own for outer in _enclosing(lease))
    if not rides and sum(one.route.pool.index == own for one in holders) >= lease.route.pool.lanes:
        return False
    return all(
        sum(_places(rm, one.route.pool.index).get(limit, 0) for one in holders) + places <= _most(rm, limit)
        for limit, places in _places(rm, own).items()
    )


def _places(rm: ResourceManager, pool: int) -> dict[int, int]:
    """Places that a call of a pool takes, by gauge."""
    kernel = rm.layout.kernel.pools[pool]
    taken = dict(zip(kernel.limits, kernel.takes, strict=False))
    return {limit: places for limit, places in taken.items() if places}


def _most(rm: ResourceManager, limit: int) -> int:
    return rm.layout.kernel.limits[limit].amount


def _refusal(lease: Lease) -> WouldDeadlock:
    chain = " in ".join(repr(one.pool) for one in (lease, *_enclosing(lease)))
    return WouldDeadlock(
        f"the tool call of agent {lease.agent!r} would wait for ever: it is nested ({chain}) in calls that hold what "
        "it needs, or that wait for each other. A tool that runs an agent can't be in a conflict group with the tools "
        "of that agent, nor be exclusive; take it out, or give tools that call each other more lanes",
        pool=lease.pool,
        agent=lease.agent,
    )
