"""Where KV goes when its memory is needed: the host's memory, or a file that vanishes with the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrm.models.engine.swap_file import Entry, SwapFile

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.arena import Arena, Segment

SwapKind = Literal["disk", "memory", "none"]


@dataclass(slots=True)
class Saved:
    """KV of `tokens` tokens outside the arena: an `entry` of the file, or a copy that is `held` in memory. `foreign`:
    whether it came from a snapshot, not from this engine."""

    tokens: int
    size: int
    entry: Entry | None = None
    held: torch.Tensor | None = None
    foreign: bool = False


class Swap:
    """At most `limit` bytes of KV saved from an arena.

    `kind`: disk, memory (of the host, for KV on a GPU) or none. `folder`: where the file is made (default: that of
    temporary files).
    """

    def __init__(self, arena: Arena, kind: SwapKind, limit: int, folder: str | None = None) -> None:
        self.kind, self.limit = kind, limit
        self.used = 0
        self._arena = arena
        self._file = SwapFile(limit, folder)

    def put(self, segments: Sequence[Segment]) -> Saved | None:
        """Saves these tokens; None if there is no room for them, on the disk neither."""
        arena = self._arena
        tokens = sum(last - first for first, last in segments)
        saved = Saved(tokens, tokens * arena.shape.token_bytes)
        if self.kind == "none" or self.used + saved.size > self.limit:
            return None
        if self.kind == "memory":
            saved.held = arena.read_to_host(segments)
        else:
            saved.entry = self._file.write(arena.views(segments))
            if saved.entry is None:
                return None
        self.used += saved.size
        return saved

    def hold(self, data: torch.Tensor) -> Saved:
        """KV of a snapshot, which has its memory already, whatever the limit."""
        self.used += data.nbytes
        return Saved(data.shape[2], data.nbytes, held=data, foreign=True)

    def get(self, saved: Saved, segments: Sequence[Segment], skip: int) -> bool:
        """Puts what was saved into these places of the arena, from its token `skip` on; it stays saved. False: the disk
        no longer has it, and the places hold nothing of worth."""
        arena = self._arena
        count = sum(last - first for first, last in segments)
        if saved.held is not None:
            arena.write(segments, saved.held[:, :, skip : skip + count])
            return True
        if arena.on_host:
            return self._read(saved, arena.views(segments), skip, count)
        data = self.copy(saved, skip + count)
        if data is not None:
            arena.write(segments, data[:, :, skip:])
        return data is not None

    def copy(self, saved: Saved, count: int) -> torch.Tensor | None:
        """A copy of its first `count` tokens in the host's memory; None if the disk no longer has it."""
        from agentrm.models.engine.arena import rows_of

        if saved.held is not None:
            return saved.held[:, :, :count].contiguous()
        data = self._arena.empty(count)
        return data if self._read(saved, [[row] for row in rows_of(data)], 0, count) else None

    def _read(self, saved: Saved, pieces: Sequence[Sequence[memoryview]], skip: int, count: int) -> bool:
        """The checksum is of all, so what is not wanted is read too, into memory that is thrown away."""
        assert saved.entry is not None
        of_token = saved.size // saved.tokens // len(pieces)
        before, after = skip * of_token, (saved.tokens - skip - count) * of_token
        waste = memoryview(bytearray(before + after))  # not the same place twice: the checksum comes after
        first, last = [waste[:before]] if before else [], [waste[before:]] if after else []
        return self._file.read(saved.entry, [[*first, *piece, *last] for piece in pieces])

    def drop(self, saved: Saved) -> None:
        """Forgets it, once."""
        self.used -= saved.size
        if saved.entry is not None:
            self._file.drop(saved.entry)
        saved.held = saved.entry = None

    def close(self) -> None:
        self._file.close()
