"""The tap of a KV pool: chains without hashes for one account, by C functions with everything bound."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from agentrm.core._agentrm_core import ffi, lib
from agentrm.core.chains import Taken
from agentrm.core.kernel import memory_of

if TYPE_CHECKING:
    from agentrm.core.blocks import BlockPool

__all__ = ["BlockTap"]


class BlockTap:
    """One account of a pool, bound: the quickest way to chains without hashes.

    `take(tokens)` opens a chain with room for so many tokens and returns its handle, or a negative code if there is
    none (`BlockPool.open` says why); its blocks are in `block[0]` to `block[n - 1]` until the next `take`.
    `give(chain)` releases any chain of the pool. Both are the C functions themselves: a number beyond 64 bits raises
    OverflowError, not KernelError.
    """

    __slots__ = ("__weakref__", "_tap", "block", "give", "take")

    def __init__(self, pool: BlockPool, account: int, room: int) -> None:
        """At most `room` blocks of a chain are listed."""
        taken = Taken(room)
        self._tap = ffi.new("arm_kv_tap *", {"ctx": pool._ctx, "who": account | pool._who, "taken": taken.c[0]})
        memory_of[self._tap] = taken, pool.kernel
        self.block: Any = taken.c.block
        self.take: Callable[[int], int] = MethodType(lib.arm_kv_take, self._tap)
        self.give: Callable[[int], int] = pool._give
        pool.kernel._ports.add(self)

    @property
    def n(self) -> int:
        """Blocks of the chain that was taken last."""
        return int(self._tap.taken.n)

    def poison(self, refuse: Callable[..., Any]) -> None:
        self.take = self.give = refuse
