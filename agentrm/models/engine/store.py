"""The KV of every program: which blocks hold which of its tokens, shared prefixes, swapping out and in.

Used by one thread: the loop's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from agentrm.models.engine.blocks import Blocks
from agentrm.models.engine.slots import Slots

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.arena import Arena, Segment
    from agentrm.models.engine.swap import Saved, Swap


class Chain:
    """The tokens of one program (or one beam) and where their KV is.

    `tokens`: all that are known. The first `fed` of them have KV: in the blocks of `table`, or saved in `saved`. The
    rest is fed when the chain is next run.
    """

    __slots__ = ("fed", "hashes", "known", "saved", "table", "tokens", "turn", "wish")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self.fed = 0
        self.table: list[int] = []
        self.hashes: list[bytes] = []
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
    """Counts since the start, in tokens; `swapped_*` in programs."""

    cached: int = 0
    """Found in blocks of others (or of an earlier turn) and not computed again."""
    kept: int = 0
    """Of a program's own earlier turns."""
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
        self.blocks = Blocks(arena.blocks)
        self.slots = Slots(arena.blocks)
        self.traffic = Traffic()
        self._slot: list[int | None] = [None] * arena.blocks

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
        if chain.saved is None:
            keep = -(-length // self.block)
            self._release(chain.table[keep:])
            del chain.table[keep:]
        del chain.hashes[length // self.block :]

    def adopt(self, chain: Chain) -> None:
        """Takes over what others have computed of the chain's tokens, but for the last one, whose logits are wanted."""
        if chain.saved is not None or chain.fed % self.block or len(chain.table) * self.block > chain.fed:
            return
        whole = (len(chain.tokens) - 1) // self.block
        hashes = self._hashes(chain, whole)
        at = len(chain.table)
        found = self.blocks.match(hashes[at:])
        chain.table += found
        self.traffic.cached += len(found) * self.block
        chain.fed += len(found) * self.block
        chain.hashes = hashes[: len(chain.table)]

    # --- blocks ---

    def needed(self, chain: Chain, upto: int) -> int:
        """How many blocks must be available so that `prepare` can cover the first `upto` tokens."""
        count = -(-upto // self.block) - len(chain.table)
        at = chain.fed // self.block
        if at < len(chain.table) and upto > chain.fed and not self.blocks.private(chain.table[at]):
            count += 1  # it is shared and about to be written to
        return max(0, count)

    def prepare(self, chain: Chain, upto: int) -> None:
        """Brings saved KV back and makes place for the first `upto` tokens."""
        saved = chain.saved
        if saved is not None:
            self._restore(chain, saved)
        at = chain.fed // self.block
        if at < len(chain.table) and upto > chain.fed and not self.blocks.private(chain.table[at]):
            self._own(chain, at)
        count = -(-upto // self.block) - len(chain.table)
        if count > 0:
            chain.table += self._take(count, chain)

    def wrote(self, chain: Chain, count: int) -> None:
        """The next `count` tokens of the chain have their KV now; full blocks become known to others."""
        chain.fed += count
        at = len(chain.hashes)
        if chain.fed // self.block > at:
            chain.hashes = self._hashes(chain, chain.fed // self.block)
            for i in range(at, len(chain.hashes)):
                self.blocks.publish(chain.table[i], chain.hashes[i])

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
        twin.fed, twin.turn, twin.wish = chain.fed, chain.turn, chain.wish
        twin.table, twin.hashes = list(chain.table), list(chain.hashes)
        self.blocks.share(twin.table)
        return twin

    # --- out of memory and back ---

    def save(self, chain: Chain) -> None:
        """Takes the chain out of the arena: into the swap space, or, where that is full, out of existence: then it
        is computed again."""
        if not chain.table:
            return
        saved = self.swap.put(self.arena.read(self.segments(chain, 0, chain.fed))) if chain.fed else None
        self._release(chain.table)
        chain.table.clear()
        chain.hashes.clear()
        if saved is None:
            self.traffic.dropped += chain.fed > 0
            chain.fed = 0
        else:
            self.traffic.swapped_out += 1
            chain.saved = saved

    def drop(self, chain: Chain) -> None:
        """The chain ends. What it has published stays as long as there is room."""
        if chain.saved is not None:
            self.swap.drop(chain.saved)
            chain.saved = None
        self._release(chain.table)
        chain.table.clear()
        chain.hashes.clear()
        chain.fed = 0

    def _restore(self, chain: Chain, saved: Saved) -> None:
        data = self.swap.get(saved)
        self.swap.drop(saved)
        chain.saved = None
        if data is None:
            chain.fed = 0
            self.traffic.dropped += 1
            return
        self.load(chain, data, own=not saved.foreign)
        self.traffic.swapped_in += 1

    def load(self, chain: Chain, data: torch.Tensor, *, own: bool) -> None:
        """Gives the chain, which has no blocks, KV of its first `fed` tokens, as `read` gave it (or of more). What is
        not the engine's `own` computation others never share."""
        hashes = self._hashes(chain, chain.fed // self.block)
        share = own and not self.exact  # another's block of the same tokens may be rounded otherwise
        chain.table = self.blocks.match(hashes) if share else []
        at = len(chain.table)
        chain.table += self._take(-(-chain.fed // self.block) - at, chain)
        if at * self.block < chain.fed:
            self.arena.write(self.segments(chain, at * self.block, chain.fed), data[:, :, at * self.block : chain.fed])
        chain.hashes = hashes
        if own:
            for i in range(at, len(hashes)):
                self.blocks.publish(chain.table[i], hashes[i])

    def read(self, chain: Chain) -> torch.Tensor | None:
        """A copy of the chain's KV wherever it is; None if it has none."""
        if chain.saved is not None:
            data = self.swap.get(chain.saved)
            return None if data is None else data[:, :, : chain.fed].contiguous()
        return self.arena.read(self.segments(chain, 0, chain.fed)) if chain.fed else None

    # --- inside ---

    def _take(self, count: int, chain: Chain) -> list[int]:
        taken = self.blocks.take(count)
        for block in taken:
            self._vacate(block)  # it was cached until now
        after = self._slot[chain.table[-1]] if chain.table else None
        wish = max(count, -(-chain.wish // self.block) - len(chain.table))
        for block in taken:
            after = self._slot[block] = self.slots.take(after, wish)
            wish -= 1
        return taken

    def _release(self, table: Sequence[int]) -> None:
        for block in self.blocks.give(table):
            self._vacate(block)

    def _vacate(self, block: int) -> None:
        slot = self._slot[block]
        if slot is not None:
            self.slots.give(slot)
            self._slot[block] = None

    def _own(self, chain: Chain, at: int) -> None:
        """Replaces a shared block by a copy."""
        shared = chain.table[at]
        old = self._slot[shared]
        tail, chain.table = chain.table[at:], chain.table[:at]
        (own,) = self._take(1, chain)
        chain.table.append(own)
        new = self._slot[own]
        assert old is not None and new is not None and len(tail) == 1
        self.arena.copy((old * self.block, (old + 1) * self.block), new * self.block)
        self._release(tail)

    def _hashes(self, chain: Chain, count: int) -> list[bytes]:
        """Of the first `count` blocks: each depends on all tokens up to its end."""
        hashes = chain.hashes[:count]
        before = hashes[-1] if hashes else b""
        for i in range(len(hashes), count):
            tokens = array("q", chain.tokens[i * self.block : (i + 1) * self.block])
            before = blake2b(before + tokens.tobytes(), digest_size=16).digest()
            hashes.append(before)
        return hashes
