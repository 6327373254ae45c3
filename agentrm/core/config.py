"""What a kernel is made with: capacities, limits and pools, and how the C core is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrm.core._agentrm_core import ffi, lib

__all__ = ["POLICIES", "KVPool", "KernelConfig", "Limit", "Pool", "arm_config", "set_up"]

POLICIES = {
    "fifo": lib.ARM_FIFO,
    "rr": lib.ARM_RR,
    "priority": lib.ARM_PRIORITY,
    "mlfq": lib.ARM_MLFQ,
    "drf": lib.ARM_DRF,
    "custom": lib.ARM_CUSTOM,
}
UNITS = {"requests": lib.ARM_REQUESTS, "tokens": lib.ARM_TOKENS, "memory": lib.ARM_MEMORY}
SHAPES = {"rolling": lib.ARM_ROLLING, "bucket": lib.ARM_BUCKET, "gauge": lib.ARM_GAUGE}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: `amount` units per `window_s` seconds (rolling, bucket), or `amount` held at a time (gauge)."""

    unit: str
    shape: str
    amount: int
    window_s: float = 60.0
    burst: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Lanes and limits (by index) of one pool. Pools that share a limit must have the same `domain`."""

    lanes: int
    limits: tuple[int, ...] = ()
    zombies: int = 0
    max_queued: int = 10_000
    policy: str = "mlfq"
    oversize_debt: bool = False
    domain: int = 0
    account_scope: int = -1
    request_cost_us: int = 0
    token_cost_q8: int = 0
    takes: tuple[int, ...] = ()
    """How much every call takes of each limit, in the order of `limits`; 0 or nothing: what the call itself states."""


@dataclass(frozen=True, slots=True)
class KVPool:
    """The KV blocks of one backend: how many, and how many tokens fit into one. See `agentrm.core.blocks`."""

    blocks: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Capacities and scheduling constants. A quantum of 0 or infinity means none at that level."""

    limits: tuple[Limit, ...] = ()
    pools: tuple[Pool, ...] = (Pool(lanes=4),)
    tickets: int = 16_384
    agents: int = 4_096
    tenants: int = 256
    scopes: int = 256
    owners: int = 16
    events: int = 4_096
    backfill_passes: int = 16
    backfill_s: float = 2.0
    age_s: float = 30.0
    boost_s: float = 60.0
    pause_s: float = 5.0
    quanta_s: tuple[float, float, float] = (10.0, 30.0, float("inf"))
    quanta_tokens: tuple[float, float, float] = (8_000.0, 32_000.0, float("inf"))
    epoch_ns: int = 0
    shared: bool = False
    """Whether other participants (processes, or threads that do not hold the GIL) may join the arena."""
    kv: tuple[KVPool, ...] = ()
    chains: int = 4_096
    """Chains that the pools of `kv` can have at a time, all together."""


def _ring(limit: Limit) -> int:
    """Entries of a rolling window: one a call and room for refunded ones, at most 65,536 (then calls share one)."""
    want = min(limit.amount if limit.unit == "requests" else 4096, 65_536) + 256
    return 1 << (want - 1).bit_length()


def _finite(x: float, scale: float) -> int:
    return 0 if x == float("inf") else int(x * scale)


def arm_config(config: KernelConfig) -> Any:
    """The capacities as the C core reads them."""
    rings = sum(_ring(x) for x in config.limits if x.shape == "rolling")
    return ffi.new(
        "arm_config *",
        {
            "tickets": config.tickets,
            "agents": config.agents,
            "tenants": config.tenants,
            "pools": max(1, len(config.pools)),
            "limits": len(config.limits),
            "scopes": config.scopes,
            "owners": config.owners,
            "events": config.events,
            "ring_entries": rings,
            "backfill_passes": config.backfill_passes,
            "backfill_us": int(config.backfill_s * 1e6),
            "age_us": _finite(config.age_s, 1e6),
            "boost_us": _finite(config.boost_s, 1e6),
            "pause_us": int(config.pause_s * 1e6),
            "quanta_us": [_finite(x, 1e6) for x in config.quanta_s],
            "quanta_tokens": [_finite(x, 1) for x in config.quanta_tokens],
            "epoch_ns": config.epoch_ns,
            "shared": int(config.shared),
            "kv_pools": len(config.kv),
            "kv_blocks": sum(x.blocks for x in config.kv),
            "kv_chains": config.chains if config.kv else 0,
        },
    )


def set_up(base: Any, config: KernelConfig, check: Callable[[int, str], int]) -> None:
    """Tells a fresh arena at `base` its limits and pools; `check(code, what)` is asked about each."""
    for i, x in enumerate(config.limits):
        c = ffi.new("arm_limit_config *")
        c.unit, c.shape = UNITS[x.unit], SHAPES[x.shape]
        c.amount, c.window_us, c.burst = x.amount, round(x.window_s * 1e6), x.burst or x.amount
        c.ring = _ring(x) if x.shape == "rolling" else 0
        check(lib.arm_set_limit(base, i, c), f"set limit {i}")
    for i, p in enumerate(config.pools):
        c = ffi.new("arm_pool_config *")
        c.lanes, c.zombies, c.max_queued = p.lanes, p.zombies, p.max_queued
        c.policy, c.oversize_debt, c.domain = POLICIES[p.policy], int(p.oversize_debt), p.domain
        c.nlimits, c.account_scope = len(p.limits), p.account_scope
        for k, limit in enumerate(p.limits[: lib.ARM_MAX_LIMITS]):
            c.limits[k] = limit
        for k, amount in enumerate(p.takes[: c.nlimits]):
            c.takes[k] = amount
        c.request_cost_us, c.token_cost_q8 = p.request_cost_us, p.token_cost_q8
        check(lib.arm_set_pool(base, i, c), f"set pool {i}")
    for i, kv in enumerate(config.kv):
        c = ffi.new("arm_kv_config *", {"blocks": kv.blocks, "block_tokens": kv.block_tokens})
        check(lib.arm_set_kv(base, i, c), f"set KV pool {i}")
