"""Numbers of KV blocks: who refers to which, which hold a known prefix, which can be taken."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Blocks:
    """Blocks 0 to `capacity` - 1 with reference counts.

    A full block may be published under the hash of all tokens up to its end; then others with that prefix share it. A
    published block that nobody refers to stays until its place is needed, the one longest unused first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._refs = [0] * capacity
        self._hash: list[bytes | None] = [None] * capacity
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.peak = 0

    @property
    def available(self) -> int:
        """How many can be taken now."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """How many are referred to."""
        return self.capacity - self.available

    @property
    def cached(self) -> int:
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """That many unshared blocks; there must be as many available."""
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _nothing = self._cached.popitem(last=False)
                self._unpublish(block)
            self._refs[block] = 1
            taken.append(block)
        self.peak = max(self.peak, self.used)
        return taken

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest published prefix, each referred to once more."""
        found = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            found.append(block)
        self.share(found)
        return found

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
        self.peak = max(self.peak, self.used)

    def give(self, blocks: Sequence[int]) -> list[int]:
        """Refers to them once less. Returns those that are free now."""
        freed = []
        for block in reversed(blocks):  # a prefix outlives what follows it
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._hash[block] is None:
                    self._free.append(block)
                    freed.append(block)
                else:
                    self._cached[block] = None
        return freed

    def publish(self, block: int, key: bytes) -> None:
        """The block is full and holds that prefix. Where another one does already, it stays unknown."""
        if self._hash[block] is None and key not in self._by_hash:
            self._hash[block] = key
            self._by_hash[key] = block

    def private(self, block: int) -> bool:
        """Whether its only owner may write to it."""
        return self._refs[block] == 1 and self._hash[block] is None

    def _unpublish(self, block: int) -> None:
        key = self._hash[block]
        if key is not None:
            del self._by_hash[key]
            self._hash[block] = None
