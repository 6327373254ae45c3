"""The Python face of the C core: one arena, one participant, return codes as errors.

The arena may be shared: give every process the same memory (`mmap` or shared memory) and let the first one initialise
it. Calls hold the GIL (see csrc/build_core.py), so one participant serves all threads of a process.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from agentrm.core._agentrm_core import ffi, lib
from agentrm.errors import ForkedError, KernelError

if TYPE_CHECKING:
    from agentrm.core.blocks import BlockPool, BlockTap
    from agentrm.core.port import Port

__all__ = ["POLICIES", "Event", "KVPool", "Kernel", "KernelConfig", "Limit", "Pool", "clock_ns", "handle_index"]

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
STATES = ("free", "claimed", "waiting", "running", "zombie")
EVENTS = {
    lib.ARM_EV_SUBMIT: "submit",
    lib.ARM_EV_GRANT: "grant",
    lib.ARM_EV_SETTLE: "settle",
    lib.ARM_EV_CANCEL: "cancel",
    lib.ARM_EV_REAP: "reap",
    lib.ARM_EV_PENALTY: "penalty",
    lib.ARM_EV_ZOMBIE_END: "zombie_end",
}
MEANING = {
    lib.ARM_E_STALE: "the handle is of a ticket that ended",
    lib.ARM_E_FULL: "a table of the arena is full; make the manager with larger capacities",
    lib.ARM_E_ARGUMENT: "an argument is out of its range",
    lib.ARM_E_VERSION: "the memory holds no arena of this version",
    lib.ARM_E_STATE: "the ticket is in another state",
}

clock_ns: Callable[[], int] = lib.arm_clock_ns


def handle_index(handle: int) -> int:
    """The slot of a ticket in the table."""
    return handle & 0xFFFFFF


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


@dataclass(frozen=True, slots=True)
class Event:
    """One transition of the kernel.

    `value`: tokens (submit); microseconds waited (grant, cancel), held (reap), or until the scope opens (penalty, whose
    `pool` is the index + 1, 0 without one); microseconds held << 2 | outcome (settle, zombie_end).
    """

    seq: int
    kind: str
    time_ns: int
    handle: int
    agent: int
    pool: int
    level: int
    value: int


def _ring(limit: Limit) -> int:
    """Entries of a rolling window: one a call and room for refunded ones, at most 65,536 (then calls share one)."""
    want = min(limit.amount if limit.unit == "requests" else 4096, 65_536) + 256
    return 1 << (want - 1).bit_length()


def _finite(x: float, scale: float) -> int:
    return 0 if x == float("inf") else int(x * scale)


def _config(config: KernelConfig) -> Any:
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


_live: weakref.WeakSet[Kernel] = weakref.WeakSet()
# What a C pointer points into, so that a bound function that somebody kept is good for as long as he keeps it.
memory_of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Kernel:
    """One participant of an arena.

    Guarantees: no call blocks; every state change is atomic and, in a shared arena, survives the death of any
    participant at any instruction; a handle of an ended ticket changes nothing. Results that do not fit the return
    value (grants, overdue leases, the next due time) are in `io` until the next call.
    """

    def __init__(self, config: KernelConfig | None = None, memory: Any = None, *, attach: bool = False) -> None:
        self._memory = memory
        if config is not None and not attach:
            c = _config(config)
            size = lib.arm_size(c)
            if not size:
                raise KernelError("the capacities do not make an arena; every one must be positive and in its range")
            if memory is None:
                self._memory = _private_memory(size)
            self._check(lib.arm_init(ffi.from_buffer(self._memory), len(self._memory), c), "initialise the arena")
            self._set_up(config)
        base = ffi.from_buffer(self._memory)
        self._base = base
        self._holder = ffi.new("char[]", lib.arm_ctx_size() + 64)
        address = int(ffi.cast("uintptr_t", self._holder))
        self._ctx = ctx = ffi.cast("arm_ctx *", (address + 63) & ~63)
        memory_of[ctx] = self._holder, self._memory, base
        self._check(
            lib.arm_join(ctx, base, len(self._memory), os.getpid(), process_started(os.getpid()), 0),
            "join the arena",
        )
        self.io = lib.arm_io_of(ctx)
        self.owner: int = lib.arm_owner_slot(ctx)
        # The hot path: C functions with the context bound. A method passes it on cheaper than functools.partial.
        self.submit: Callable[[int, int, int], int] = MethodType(lib.arm_submit, ctx)
        self.settle: Callable[[int, int, int], int] = MethodType(lib.arm_settle, ctx)
        self.cancel: Callable[[int, int], int] = MethodType(lib.arm_cancel, ctx)
        self.heartbeat: Callable[[int, int], int] = MethodType(lib.arm_heartbeat, ctx)
        self.reap: Callable[[int, int], int] = MethodType(lib.arm_reap, ctx)
        self.try_acquire: Callable[[int, int, int], int] = MethodType(lib.arm_try, ctx)
        self._ports: weakref.WeakSet[Port | BlockPool | BlockTap] = weakref.WeakSet()
        _live.add(self)

    def _set_up(self, config: KernelConfig) -> None:
        base = ffi.from_buffer(self._memory)
        for i, x in enumerate(config.limits):
            c = ffi.new("arm_limit_config *")
            c.unit, c.shape = UNITS[x.unit], SHAPES[x.shape]
            c.amount, c.window_us, c.burst = x.amount, round(x.window_s * 1e6), x.burst or x.amount
            c.ring = _ring(x) if x.shape == "rolling" else 0
            self._check(lib.arm_set_limit(base, i, c), f"set limit {i}")
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
            self._check(lib.arm_set_pool(base, i, c), f"set pool {i}")
        for i, kv in enumerate(config.kv):
            c = ffi.new("arm_kv_config *", {"blocks": kv.blocks, "block_tokens": kv.block_tokens})
            self._check(lib.arm_set_kv(base, i, c), f"set KV pool {i}")

    @staticmethod
    def _check(rc: int, what: str) -> int:
        if rc < 0:
            raise KernelError(f"could not {what}: {MEANING.get(rc, f'code {rc}')}")
        return rc

    # --- names ---

    def tenant(self, name: str, weight: float = 0.0) -> int:
        """Index of a tenant, made when new; a positive `weight` sets its share (1.0 is usual)."""
        raw = _name(name)
        return self._check(lib.arm_tenant(self._ctx, raw, len(raw), round(weight * 1024)), f"name tenant {name!r}")

    def agent(self, name: str, tenant: int = 0, weight: float = 0.0) -> int:
        """Handle of an agent of a tenant, made when new."""
        raw = _name(name)
        rc = lib.arm_agent(self._ctx, raw, len(raw), tenant, round(weight * 1024))
        return self._check(rc, f"name agent {name!r}")

    def scope(self, name: str, pool: int = -1) -> int:
        """Index of a scope that a provider can close: a model of a pool, or (pool -1) an account."""
        raw = _name(name)
        return self._check(lib.arm_scope(self._ctx, raw, len(raw), pool), f"name scope {name!r}")

    def name(self, kind: str, index: int) -> str:
        """Name of a tenant, agent or scope by its index."""
        out = ffi.new("char[60]")
        rc = lib.arm_name(self._ctx, ("tenant", "agent", "scope").index(kind), index, out)
        self._check(rc, f"find {kind} {index}")
        return bytes(ffi.buffer(out)).rstrip(b"\0").decode("utf-8", "replace")

    # --- the rest of the operations ---

    def granted(self) -> list[int]:
        """Handles that the last call granted to this participant."""
        return ffi.unpack(self.io.granted, self.io.n_granted) if self.io.n_granted else []

    def next_due_ns(self) -> int | None:
        """When the earliest waiting ticket can run without a settle, as seen by the last call."""
        due: int = self.io.next_due_ns
        return None if due < 0 else due

    def leave(self, now_ns: int) -> None:
        """Ends this participant: what it holds is given back, its place is free. Not to be used afterwards."""
        self._check(lib.arm_leave(self._ctx, now_ns), "leave the arena")

    def advance(self, now_ns: int) -> int:
        """Grants what time has made possible; returns how many (`granted`)."""
        return int(lib.arm_advance(self._ctx, now_ns))

    def poll(self) -> int:
        """Fetches the grants that other participants made for this one; returns how many (`granted`)."""
        return int(lib.arm_poll(self._ctx))

    def overdue(self, now_ns: int) -> Iterator[tuple[int, str]]:
        """(handle, "idle" | "run") of each running lease past one of its limits."""
        cursor = 0
        while True:
            cursor = lib.arm_sweep(self._ctx, cursor, now_ns)
            found = [(self.io.overdue[i], self.io.reason[i]) for i in range(self.io.n_overdue)]
            for handle, reason in found:
                yield handle, "run" if reason == lib.ARM_OVERDUE_RUN else "idle"
            if cursor <= 0:
                return

    def penalise(self, scope: int, until_ns: int, cut: int, since_ns: int, now_ns: int) -> None:
        """Closes a scope until a time. `cut` 1 also slows it down, 2 less so (the provider named the time): once
        for all calls that began before the cut."""
        self._check(lib.arm_penalise(self._ctx, scope, until_ns, int(cut), since_ns, now_ns), "penalise")

    def reopen(self, scope: int, now_ns: int) -> None:
        self._check(lib.arm_reopen(self._ctx, scope, now_ns), "reopen")

    def correct(self, limit: int, remaining: int, now_ns: int) -> None:
        """Takes the provider's word for what is left of a limit."""
        self._check(lib.arm_correct(self._ctx, limit, min(remaining, 2_000_000_000), now_ns), "correct a limit")

    def set_policy(self, pool: int, policy: str) -> None:
        self._check(lib.arm_set_policy(self._ctx, pool, POLICIES[policy]), "set a policy")

    def owner_dead(self, owner: int, pid: int, now_ns: int) -> int:
        """Frees what a dead participant held, if its place (see `owners`) is still that process's; returns the
        number of tickets. Repeat while it fills `granted`."""
        return self._check(lib.arm_owner_dead(self._ctx, owner, pid, now_ns), "bury an owner")

    def owners(self) -> Iterator[tuple[int, int, int]]:
        """(slot, pid, start time) of each participant."""
        out = [ffi.new("int64_t *") for _ in range(3)]
        slot = 0
        while (rc := lib.arm_owner_info(self._ctx, slot, *out)) != lib.ARM_E_ARGUMENT:
            if rc == lib.ARM_OK:
                yield slot, out[0][0], out[1][0]
            slot += 1

    # --- looking ---

    def tickets(self) -> Iterator[Any]:
        """An `arm_ticket_info` for each ticket that waits, runs or is a zombie."""
        for i in range(lib.arm_ticket_count(self._ctx)):
            out = ffi.new("arm_ticket_info *")
            lib.arm_ticket_at(self._ctx, i, out)
            if out.state >= lib.ARM_WAITING:
                yield out

    def ticket(self, handle: int) -> Any:
        """The `arm_ticket_info` of a live handle, None once it ended."""
        out = ffi.new("arm_ticket_info *")
        lib.arm_ticket_at(self._ctx, handle_index(handle), out)
        return out if out.handle == handle else None

    def pool_info(self, pool: int, out: Any = None) -> Any:
        """Lanes, used and waiting of a pool now; written into an earlier answer `out` if there is one."""
        out = ffi.new("arm_pool_info *") if out is None else out
        self._check(lib.arm_pool_at(self._ctx, pool, out), "look at a pool")
        return out

    def limit_info(self, limit: int, now_ns: int) -> Any:
        out = ffi.new("arm_limit_info *")
        self._check(lib.arm_limit_at(self._ctx, limit, now_ns, out), "look at a limit")
        return out

    def scope_info(self, scope: int) -> Any:
        out = ffi.new("arm_scope_info *")
        self._check(lib.arm_scope_at(self._ctx, scope, out), "look at a scope")
        return out

    def demotion(self, agent: int, klass: int, now_ns: int) -> int:
        """Levels that the agent's work of a class (0 to 2) is below its class now."""
        return self._check(lib.arm_agent_demotion(self._ctx, agent, klass, now_ns), "look at an agent")

    def scope_count(self) -> int:
        return int(lib.arm_scope_count(self._ctx))

    def event_head(self) -> int:
        """Number of events so far; the ring keeps the newest."""
        return int(lib.arm_event_head(self._ctx))

    def events(self, start: int, room: int = 1024) -> list[Event]:
        """Events from number `start` on; gaps in `seq` are events that were overwritten before this call."""
        out = ffi.new("arm_event[]", room)
        n = lib.arm_events(self._ctx, start, out, room)
        return [
            Event(e.seq, EVENTS[e.kind], e.time_ns, e.handle, e.agent, e.pool, e.level, e.value)
            for e in (out[i] for i in range(n))
        ]

    def check(self) -> None:
        """Raises KernelError if an invariant of the arena does not hold (tests; looks at every ticket)."""
        why = ffi.new("char[200]")
        rc = lib.arm_check(self._ctx, why, 200)
        if rc:
            raise KernelError(f"invariant broken: {ffi.string(why).decode()}")

    def poison(self) -> None:
        """After fork: every further use raises ForkedError, and the parent's state stays untouched."""

        def refuse(*_: object) -> Any:
            raise ForkedError(
                "this ResourceManager was made before fork() and belongs to the parent process; "
                "make a new ResourceManager in the child"
            )

        for name in _OPERATIONS:
            setattr(self, name, refuse)
        for port in list(self._ports):
            port.poison(refuse)


_OPERATIONS = (
    "submit", "settle", "cancel", "heartbeat", "reap", "try_acquire", "advance", "poll", "overdue", "penalise",
    "reopen", "correct", "set_policy", "owner_dead", "owners", "tickets", "ticket", "pool_info", "limit_info",
    "scope_info", "demotion", "events", "event_head", "check", "tenant", "agent", "scope", "name",
    "scope_count",
)  # fmt: skip


def _private_memory(size: int) -> mmap.mmap:
    """Memory that a forked child gets a copy of, where the system can say so."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _name(text: str) -> bytes:
    """At most 60 bytes: a longer name keeps its start and gets a digest, so that two long names stay two."""
    raw = text.encode("utf-8", "surrogatepass")
    if not raw:
        raise KernelError("a name must not be empty")
    if len(raw) <= 60 and b"\0" not in raw:
        return raw
    from hashlib import blake2b

    return raw[:43].replace(b"\0", b"?") + b"#" + blake2b(raw, digest_size=8).hexdigest().encode()


def process_started(pid: int) -> int:
    """Start time of a process in clock ticks since boot (0 where it cannot be told), so that a reused pid is
    noticed."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _after_fork() -> None:
    for kernel in list(_live):
        kernel.poison()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
