"""What a caller is told when its call is not admitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.core import codes
from agentrm.errors import (
    AgentRMError,
    KernelError,
    LeaseError,
    ManagerClosed,
    QueueFull,
    QueueTimeout,
    RequestTooLarge,
)

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

RETRY_S = 1.0


def closing(name: str, lease: Lease) -> ManagerClosed:
    """For a call that comes, or still waits, when its manager closes."""
    return ManagerClosed(
        f"manager {name!r} is closing or closed; the call of agent {lease.agent!r} was not sent. Make a new manager",
        pool=lease.pool, agent=lease.agent,
    )  # fmt: skip


def of_zombie(parent: Lease) -> LeaseError:
    """For a call of work that lost its lease and goes on: nobody waits for it, and it might wait for its own lane."""
    if parent.error is not None:
        return parent.error
    return LeaseError(
        f"the caller of agent {parent.agent!r} in {parent.pool!r} has left, so its work makes no further calls. End "
        "the work",
        pool=parent.pool, agent=parent.agent,
    )  # fmt: skip


def queue_timeout(lease: Lease, wait_max: float, opens_in_s: float) -> QueueTimeout:
    """For a call that waited `wait_max` seconds in vain; `opens_in_s`: seconds until its provider's scope opens, 0 if
    it is open."""
    when = f"; the provider's scope is usable in {opens_in_s:.3g} s" if opens_in_s else ""
    return QueueTimeout(
        f"the call of agent {lease.agent!r} may wait {wait_max:g} s in the queue of {lease.pool!r} (queue wait) and "
        f"got no lane{when}. Nothing was sent; retry, wait longer (wait_max), or add lanes",
        pool=lease.pool, agent=lease.agent, is_retryable=True, retry_after=opens_in_s or None,
    )  # fmt: skip


def of_code(code: int, lease: Lease, rm: ResourceManager) -> AgentRMError:
    """The error for a kernel's refusal of a submit."""
    if code == codes.E_TOO_LARGE:
        return _too_large(lease, rm)
    if code in (codes.E_QUEUE, codes.E_FULL):
        bound = (
            f"{rm.config.waiting.max_queued} waiting calls, as many as waiting.max_queued allows"
            if code == codes.E_QUEUE
            else f"{rm.layout.kernel.tickets} live calls in all pools, as many as the kernel's table"
        )
        return QueueFull(
            f"{lease.pool!r} holds {bound}; the call of agent {lease.agent!r} was not queued. Retry later or raise "
            "the bound",
            pool=lease.pool, agent=lease.agent, is_retryable=True, retry_after=RETRY_S,
        )  # fmt: skip
    return KernelError(f"the kernel refused the call of agent {lease.agent!r} in {lease.pool!r} (code {code})")


def _too_large(lease: Lease, rm: ResourceManager) -> RequestTooLarge:
    need = {"requests": 1, "tokens": lease.tokens, "memory": lease._memory}
    debt = lease.route.pool.config.oversize == "debt"
    for index in lease.route.pool.limits:
        key, limit = rm.layout.limits[index]
        gauge = limit.counting == "gauge"
        if need[limit.resource] > limit.capacity and (gauge or not debt):
            more = "" if gauge else f", or set pools.{lease.pool}.oversize to debt"
            return RequestTooLarge(
                f"the call of agent {lease.agent!r} asks for {need[limit.resource]} {limit.resource} and {key} never "
                f"holds more than {limit.capacity}. Ask for less, or raise the limit{more}",
                pool=lease.pool, agent=lease.agent,
            )  # fmt: skip
    raise AssertionError("the kernel found a limit too small and the manager none")
