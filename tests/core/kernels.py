"""A small kernel for tests, and the calls that make something run or wait on it."""

from __future__ import annotations

from typing import Any

from agentrm.core.kernel import Kernel, KernelConfig, Limit, Pool

MS = 1_000_000
SMALL: dict[str, Any] = {"tickets": 64, "agents": 16, "tenants": 8, "scopes": 8, "owners": 4, "events": 64}
DONE, FAILED, REFUND = 0, 1, 2
RESUMED, TRY = 1, 2


def who(agent: int = 0, *, pool: int = 0, klass: int = 0, flags: int = 0, scope: int = 7) -> int:
    return pool | klass << 10 | flags << 12 | (agent & 0xFFFFFF) << 16 | scope << 40 | (agent >> 36) << 52


def kernel(*pools: Pool, limits: tuple[Limit, ...] = (), shared: bool = False, **more: Any) -> Kernel:
    k = Kernel(KernelConfig(pools=pools or (Pool(1),), limits=limits, shared=shared, **(SMALL | more)))
    k.agent("agent", k.tenant("tenant"))
    return k


def running(k: Kernel, now: int = 0, *args: Any, tokens: int = 0, **more: Any) -> int:
    rc = k.submit(who(*args, **more), tokens, now)
    assert rc > 0 and rc & 1, f"not granted at once: {rc}"
    return rc >> 1


def waiting(k: Kernel, now: int = 0, *args: Any, tokens: int = 0, **more: Any) -> int:
    rc = k.submit(who(*args, **more), tokens, now)
    assert rc > 0 and not rc & 1, f"does not wait: {rc}"
    return rc >> 1
