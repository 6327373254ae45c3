"""A file for KV that had to leave its memory: written straight from there, read straight back, no copy in between.

It is a cache for the life of one process: it has no name, so a killed process leaves nothing, and nothing waits for the
disk itself (no fsync: the system writes back when it likes). What comes back must be what was written, so each entry
has a CRC-32, computed piece by piece while the piece is in the processor's cache (about 3 GB/s of one core).
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pieces = Sequence[Sequence[memoryview]]
"""Memory that becomes one entry, piece after piece; each piece may lie in several places."""

_VECTORS = 1024
"""Most places that one system call takes (IOV_MAX)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where some bytes are in the file, and their checksum."""

    place: int
    size: int
    checksum: int


class SwapFile:
    """At most `limit` bytes. `folder`: where the file is made (default: that of temporary files). For one thread."""

    def __init__(self, limit: int, folder: str | None = None) -> None:
        self.limit, self._folder = limit, folder
        self._file: int | None = None
        self._taken: list[tuple[int, int]] = []  # (offset, size), in order

    def write(self, pieces: Pieces) -> Entry | None:
        """Saves them; None if there is no room within the limit, or on the disk."""
        size = sum(len(view) for piece in pieces for view in piece)
        place = self._gap(size)
        if place + size > self.limit:
            return None
        at, checksum = place, 0
        try:
            file = self._open()
            for piece in pieces:
                for view in piece:
                    checksum = zlib.crc32(view, checksum)
                at += _move(lambda views, to: os.pwritev(file, views, to), piece, at)
        except OSError:  # the disk is full or gone: what is not saved is computed again
            return None
        self._taken.append((place, size))
        self._taken.sort()
        return Entry(place, size, checksum)

    def read(self, entry: Entry, pieces: Pieces) -> bool:
        """Fills the pieces, which are as large as those that were written. False: the disk did not give back what it
        was given, and what is in the pieces now is worth nothing."""
        at, checksum = entry.place, 0
        try:
            file = self._open()
            for piece in pieces:
                at += _move(lambda views, of: os.preadv(file, views, of), piece, at)
                for view in piece:
                    checksum = zlib.crc32(view, checksum)
        except OSError:
            return False
        return at == entry.place + entry.size and checksum == entry.checksum

    def drop(self, entry: Entry) -> None:
        """Its place is free for others."""
        self._taken.remove((entry.place, entry.size))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _gap(self, size: int) -> int:
        """The first gap of that size."""
        at = 0
        for place, taken in self._taken:
            if place - at >= size:
                return at
            at = place + taken
        return at

    def _open(self) -> int:
        if self._file is None:
            with tempfile.TemporaryFile(prefix="agentrm-kv-", dir=self._folder) as file:
                self._file = os.dup(file.fileno())
        return self._file

    def __del__(self) -> None:
        self.close()


def _move(move: Callable[[Sequence[memoryview], int], int], piece: Sequence[memoryview], place: int) -> int:
    """All of the piece to or from `place` on. Returns how many bytes that were: fewer at the end of the file."""
    views, first, moved = list(piece), 0, 0
    while first < len(views):
        count = move(views[first : first + _VECTORS], place + moved)
        if count == 0:
            break
        moved += count
        while first < len(views) and count >= len(views[first]):
            count -= len(views[first])
            first += 1
        if count:
            views[first] = views[first][count:]
    return moved
