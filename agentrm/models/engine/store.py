"""The KV of every program: which blocks hold which of its tokens, shared prefixes, swapping out and in.

Which blocks a chain has is the kernel's account (`agentrm.core.blocks`); where a block lies in the arena, and what is
in it, is kept here. Used by one thread: the loop's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.core.blocks import BlockPool, block_hashes
from agentrm.models.engine.slots import Slots

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.arena import Arena, Segment
    from agentrm.models.engine.swap import Saved, Swap

_HASH = 8  # bytes of a block's hash


class Chain:
    """The tokens of one program (or one beam) and where their KV is.

    `tokens`: all that are known. The first `fed` of them have KV: in the blocks of `table`, or saved in `saved`. The
    rest is fed when the chain is next run.
    """

    __slots__ = ("account", "fed", "handle", "known", "room", "saved", "sealed", "table", "tokens", "turn", "wish")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self.fed = 0
        self.account = 0
        """Whom the pool charges for its blocks."""
        self.handle: int | None = None
        """Its name in the pool, while it has blocks."""
        self.table: list[int] = []
        self.room = 0
        """Tokens that its blocks are taken for."""
        self.sealed: bytes | None = b""
        """Hashes of the blocks that others may share; None: they never may."""
        self.saved: Saved | None = None
        self.turn = 0
        """Where the tokens begin that were written one at a time since the last prompt."""
        self.known = 0
        """How many tokens of the latest prompt had KV when the call began."""
        self.wish = 0
        """How many tokens it may come to have."""

    @property
    def pending(self) -> int:
        """Tokens that are to be fed."""
        return len(self.tokens) - self.fed


@dataclass(slots=True)
class Traffic:
    """Counts since the start. `cached`, `kept`: tokens found in others' blocks, or of a program's own earlier turns."""

    cached: int = 0
    kept: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    dropped: int = 0
    """Programs whose KV had to be given up."""


class Store:
    """The arena's blocks and who has them. `exact`: KV that was lost is computed again token by token where it was
    computed so (needed below float32)."""

    def __init__(self, arena: Arena, swap: Swap, *, exact: bool) -> None:
        self.arena, self.swap, self.exact = arena, swap, exact
        self.block = arena.block
        chains = min(1 << 20, max(4_096, arena.blocks))
        self.pool = BlockPool.alone(arena.blocks, arena.block, chains=chains, name="local")
        self.slots = Slots(arena.blocks)
        self.traffic = Traffic()
        self.peak = 0
        """Most blocks in use at a time."""
        self._slot: list[int | None] = [None] * arena.blocks
        self._salt = os.urandom(16)

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        counts = self.pool.statistics()
        return counts.free + counts.cached

    # --- tokens ---

    def set_tokens(self, chain: Chain, tokens: Sequence[int]) -> None:
        """Other tokens; the KV of the common beginning is kept."""
        known = min(chain.fed, len(tokens))
        if list(tokens[:known]) != chain.tokens[:known]:
            known = next(i for i, (a, b) in enumerate(zip(tokens, chain.tokens, strict=False)) if a != b)
        self.truncate(chain, known)
        chain.tokens = list(tokens)

    def feed_again(self, chain: Chain, count: int) -> None:
        """Makes sure that at least the last `count` tokens are fed next: their logits are wanted."""
        if chain.pending < count:
            tokens = chain.tokens
            self.truncate(chain, len(tokens) - count)
            chain.tokens = tokens

    def truncate(self, chain: Chain, length: int) -> None:
        """Forgets the KV (and the tokens) after the first `length`."""
        chain.tokens = chain.tokens[:length]
        if length >= chain.fed:
            return
        chain.fed = length
        chain.turn = min(chain.turn, length)
        if chain.sealed is not None:
            chain.sealed = chain.sealed[: length // self.block * _HASH]
        if chain.handle is not None:
            self.pool.truncate(chain.handle, length)
            chain.room = length
            del chain.table[-(-length // self.block) :]

    def adopt(self, chain: Chain) -> None:
        """Takes over what others have computed of the chain's tokens, but for the last one, whose logits are wanted."""
        if chain.saved is not None or chain.handle is not None:
            return
        hashes = block_hashes(chain.tokens[:-1], self.block, salt=self._salt)
        chain.handle = self.pool.open(chain.account, hashes=hashes)
        chain.table = self.pool.blocks(chain.handle)
        chain.room = chain.fed = len(chain.table) * self.block
        chain.sealed = hashes[: len(chain.table) * _HASH]
        self.traffic.cached += chain.fed
        self._count()

    # --- blocks ---

    def needed(self, chain: Chain, upto: int) -> int:
        """How many blocks must be available, at most, so that `prepare` can cover the first `upto` tokens."""
        count = -(-upto // self.block) - len(chain.table)
        return max(0, count) + (chain.room % self.block != 0)  # its last block may have to be copied

    def prepare(self, chain: Chain, upto: int) -> None:
        """Brings saved KV back and makes place for the first `upto` tokens. Raises BlockQuotaExceeded."""
        if chain.saved is not None:
            self._restore(chain, chain.saved)
        if upto <= chain.room:
            return
        if chain.handle is None:
            chain.handle = self.pool.open(chain.account)
        self.pool.extend(chain.handle, upto - chain.room)
        at = max(0, len(chain.table) - 1)
        copied = self.pool.chain(chain.handle).copy if chain.room % self.block else None
        if copied is not None:
            source = self._slot[copied[0]]
            chain.table.pop()
            self._place(chain, at)
            target = self._slot[copied[1]]
            assert source is not None and target is not None
            self.arena.copy((source * self.block, (source + 1) * self.block), target * self.block)
        self._place(chain, len(chain.table))
        chain.room = upto

    def wrote(self, chain: Chain, count: int) -> None:
        """The next `count` tokens of the chain have their KV now; full blocks become known to others."""
        chain.fed += count
        if chain.sealed is None or chain.handle is None:
            return
        at = len(chain.sealed) // _HASH
        if chain.fed // self.block > at:
            fresh = self._hashes(chain, at, chain.fed // self.block)
            self.pool.seal(chain.handle, fresh)
            chain.sealed += fresh

    def segments(self, chain: Chain, first: int, last: int) -> list[Segment]:
        """Where tokens `first` to before `last` lie in the arena."""
        block, found = self.block, list[tuple[int, int]]()
        for i in range(first // block, -(-last // block)):
            slot = self._slot[chain.table[i]]
            assert slot is not None
            start = slot * block + (first - i * block if i * block < first else 0)
            end = slot * block + min(block, last - i * block)
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found

    def fork(self, chain: Chain) -> Chain:
        """Another chain with the same tokens; the two share all blocks until one writes."""
        twin = Chain(chain.tokens)
        twin.fed, twin.turn, twin.wish, twin.known = chain.fed, chain.turn, chain.wish, chain.known
        twin.account, twin.room, twin.sealed = chain.account, chain.room, chain.sealed
        if chain.handle is not None:
            twin.handle, twin.table = self.pool.fork(chain.handle), list(chain.table)
        return twin

    # --- out of memory and back ---

    def save(self, chain: Chain) -> None:
        """Takes the chain out of the arena: into the swap space, or, where that is full, out of existence: then it
        is computed again."""
        if chain.handle is None:
            return
        saved = self.swap.put(self.segments(chain, 0, chain.fed)) if chain.fed else None
        self._release(chain)
        if saved is None:
            self.traffic.dropped += chain.fed > 0
            chain.fed = 0
            chain.sealed = b""
        else:
            self.traffic.swapped_out += 1
            chain.saved = saved

    def flush(self) -> int:
        """Empties the cache of what nobody holds. Returns how many blocks that were."""
        return len(self.pool.evict(self.pool.capacity))

    def drop(self, chain: Chain) -> None:
        """The chain ends. What others may share of it stays as long as there is room."""
        if chain.saved is not None:
            self.swap.drop(chain.saved)
            chain.saved = None
        self._release(chain)
        chain.fed, chain.sealed = 0, b""

    def read(self, chain: Chain) -> torch.Tensor | None:
        """A copy of the chain's KV wherever it is; None if it has none."""
        if chain.saved is not None:
            return self.swap.copy(chain.saved, chain.fed)
        return self.arena.read(self.segments(chain, 0, chain.fed)) if chain.fed else None

    def _restore(self, chain: Chain, saved: Saved) -> None:
        """Puts saved KV into blocks; what the pool still has of it is shared instead. KV of a snapshot others never
        share, and below float32 others' KV of the same tokens may be rounded otherwise. KV that the disk has lost is to
        be computed again: then the chain has fed nothing."""
        hashes = b"" if self.exact or saved.foreign else self._hashes(chain, 0, chain.fed // self.block)
        chain.handle = self.pool.open(chain.account, chain.fed, hashes)
        shared = self.pool.chain(chain.handle).matched
        at = shared * self.block
        self._place(chain, 0, shared)
        chain.room = chain.fed
        there = at >= chain.fed or self.swap.get(saved, self.segments(chain, at, chain.fed), at)
        self.swap.drop(saved)
        chain.saved = None
        if there:
            chain.sealed = None if saved.foreign else hashes
            self.traffic.swapped_in += 1
        else:
            self.pool.drop(chain.handle)  # not released: nobody may find these blocks by their hashes
            chain.handle = None
            self._release(chain)
            chain.fed, chain.sealed = 0, b""
            self.traffic.dropped += 1

    def _release(self, chain: Chain) -> None:
        if chain.handle is not None:
            self.pool.release(chain.handle)
            chain.handle = None
        chain.table.clear()
        chain.room = 0

    def _place(self, chain: Chain, start: int, shared: int = 0) -> None:
        """Gives the chain's blocks from `start` on, just taken, their places in the arena. The first `shared` of them
        are others' too, and have theirs."""
        assert chain.handle is not None
        taken = self.pool.blocks(chain.handle, start)
        fresh = taken[shared:]
        for block in fresh:
            if (slot := self._slot[block]) is not None:  # its place when it held something else
                self.slots.give(slot)
                self._slot[block] = None
        chain.table += taken
        before = chain.table[-len(fresh) - 1] if fresh and len(chain.table) > len(fresh) else None
        after = None if before is None else self._slot[before]
        wish = max(len(fresh), -(-chain.wish // self.block) - len(chain.table) + len(fresh))
        for block in fresh:
            after = self._slot[block] = self.slots.take(after, wish)
            wish -= 1
        self._count()

    def _count(self) -> None:
        self.peak = max(self.peak, self.pool.statistics().used)

    def _hashes(self, chain: Chain, first: int, last: int) -> bytes:
        """Of the chain's full blocks `first` to before `last`."""
        parent = (chain.sealed or b"")[(first - 1) * _HASH : first * _HASH] if first else b""
        tokens = chain.tokens[first * self.block : last * self.block]
        return block_hashes(tokens, self.block, parent=parent, salt=self._salt)
