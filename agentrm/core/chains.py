"""What a pool of KV blocks tells: a chain at a moment, the pool's counts, what an operation took and evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from agentrm.core._agentrm_core import ffi

__all__ = ["BlockStatistics", "Chain", "Evicted"]


class Evicted(NamedTuple):
    """A block that was taken from the cache, and the hash (8 bytes) of the content it had."""

    block: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Chain:
    """What one chain is at a moment.

    `program` is the caller's number, `tokens` what it has room for, `blocks` its length, `sealed` how many leading
    blocks have a hash, `matched` how many were resident when it was opened. `copy` is (from, to) if the last `extend`
    put a copy in the place of a block that others read: the engine copies the content; the source stays as it is until
    the chain's next operation. `owner` is the participant of a shared arena that opened it.
    """

    handle: int
    program: int
    tokens: int
    blocks: int
    sealed: int
    matched: int
    copy: tuple[int, int] | None
    agent: int
    owner: int


@dataclass(frozen=True, slots=True)
class BlockStatistics:
    """Counts of a pool, in blocks. `capacity` = `used` + `cached` + `free`; of these `reserved` are promised to an
    operation that another participant is in the middle of. `queries` and `hits` are blocks looked for by hash and
    found, `taken` those taken from the free or the cached ones, `evicted` those that lost a cached content."""

    capacity: int
    block_tokens: int
    used: int
    cached: int
    free: int
    reserved: int
    chains: int
    queries: int
    hits: int
    taken: int
    evicted: int


class Taken:
    """Room for what an operation takes."""

    __slots__ = ("_block", "_had", "_hash", "c")

    def __init__(self, room: int) -> None:
        self._block, self._hash = ffi.new("int32_t[]", room), ffi.new("uint64_t[]", room)
        self._had = ffi.new("uint8_t[]", room)
        self.c = ffi.new("arm_kv_taken *", {"room": room, "block": self._block, "hash": self._hash, "had": self._had})

    def evicted(self) -> list[Evicted]:
        hashes = bytes(ffi.buffer(self._hash))
        n = min(self.c.n, self.c.room)
        return [Evicted(self._block[i], hashes[i * 8 : i * 8 + 8]) for i in range(n) if self._had[i]]


def chain_of(x: Any) -> Chain:
    """From the `arm_kv_chain_info` that C filled."""
    copy = None if x.copy_from < 0 else (x.copy_from, x.copy_to)
    return Chain(x.handle, x.program, x.tokens, x.blocks, x.sealed, x.matched, copy, x.agent, x.owner)
