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
from agentrm.core.config import POLICIES, KernelConfig, KVPool, Limit, Pool, arm_config, set_up
from agentrm.core.infos import LimitInfo, PoolInfo, ScopeInfo, TicketInfo
from agentrm.errors import ForkedError, KernelError

if TYPE_CHECKING:
    from agentrm.core.blocks import BlockPool
    from agentrm.core.port import Port
    from agentrm.core.tap import BlockTap

__all__ = ["POLICIES", "Event", "KVPool", "Kernel", "KernelConfig", "Limit", "Pool", "clock_ns", "handle_index"]

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
            c = arm_config(config)
            size = lib.arm_size(c)
            if not size:
                raise KernelError("the capacities do not make an arena; every one must be positive and in its range")
            if memory is None:
                self._memory = _private_memory(size)
            self._check(lib.arm_init(ffi.from_buffer(self._memory), len(self._memory), c), "initialise the arena")
            set_up(ffi.from_buffer(self._memory), config, self._check)
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
        self.forked = False
        """Whether this is a child of the process that it belongs to."""
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

    def tickets(self) -> Iterator[TicketInfo]:
        """Each ticket that waits, runs or is a zombie."""
        for i in range(lib.arm_ticket_count(self._ctx)):
            out = ffi.new("arm_ticket_info *")
            lib.arm_ticket_at(self._ctx, i, out)
            if out.state >= lib.ARM_WAITING:
                yield out

    def ticket(self, handle: int) -> TicketInfo | None:
        """The ticket of a live handle, None once it ended."""
        out: TicketInfo = ffi.new("arm_ticket_info *")
        lib.arm_ticket_at(self._ctx, handle_index(handle), out)
        return out if out.handle == handle else None

    def pool_info(self, pool: int, out: PoolInfo | None = None) -> PoolInfo:
        """Lanes, used and waiting of a pool now; written into an earlier answer `out` if there is one."""
        out = ffi.new("arm_pool_info *") if out is None else out
        self._check(lib.arm_pool_at(self._ctx, pool, out), "look at a pool")
        return out

    def limit_info(self, limit: int, now_ns: int) -> LimitInfo:
        """What a limit has left at `now_ns`."""
        out: LimitInfo = ffi.new("arm_limit_info *")
        self._check(lib.arm_limit_at(self._ctx, limit, now_ns, out), "look at a limit")
        return out

    def scope_info(self, scope: int) -> ScopeInfo:
        """Until when a scope is closed, and how it is slowed down."""
        out: ScopeInfo = ffi.new("arm_scope_info *")
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
        self.forked = True

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
