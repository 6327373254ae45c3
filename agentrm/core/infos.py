"""What the kernel tells about a ticket, a pool, a limit and a scope: the structs of `csrc/arm.h` as types.

Times end in their unit: `_ns` of the kernel's clock, `_us` durations in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["LimitInfo", "PoolInfo", "ScopeInfo", "TicketInfo"]


class TicketInfo(Protocol):
    """`arm_ticket_info`. `state`, `klass`, `level`: numbers of `csrc/arm.h`; `parent`: handle of the enclosing lease, 0
    for none; `passes`: smaller calls that went before it; `loan`: whether it runs on its lender's lane; `kids`: live
    nested calls."""

    handle: int
    submitted_ns: int
    granted_ns: int
    heartbeat_ns: int
    parent: int
    tokens: int
    memory: int
    state: int
    pool: int
    klass: int
    level: int
    agent: int
    tenant: int
    owner: int
    scope: int
    passes: int
    loan: int
    kids: int


class PoolInfo(Protocol):
    """`arm_pool_info`. `dead`: zombies, of which `zombies` at most leave their lane to others; `level_start`: the
    virtual time of each level; `ewma_us`: how long a call usually takes, 0 before one ended."""

    lanes: int
    used: int
    dead: int
    zombies: int
    waiting: int
    level_start: Sequence[int]
    ewma_us: int


class LimitInfo(Protocol):
    """`arm_limit_info`. `level`: what can be taken now, in the limit's unit (less than 0: in debt)."""

    level: int
    capacity: int
    amount: int
    window_us: int
    unit: int
    shape: int


class ScopeInfo(Protocol):
    """`arm_scope_info`. `factor`: its pace, 65536 being full speed; `parked`: calls that wait until it opens; `pool`:
    -1 for an account or a whole pool."""

    closed_until_ns: int
    gap_us: int
    next_ns: int
    cut_ns: int
    factor: int
    parked: int
    pool: int
