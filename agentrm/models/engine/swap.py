"""Where KV goes when its memory is needed: the host's memory, or one file that vanishes with the process."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

SwapKind = Literal["disk", "memory", "none"]


@dataclass(slots=True)
class Saved:
    """KV of some tokens outside the arena."""

    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int = 0
    """Byte offset in the file."""
    held: torch.Tensor | None = None
    """The copy itself, where it is in memory."""
    foreign: bool = False
    """Whether it came from a snapshot, not from this engine."""


class Swap:
    """At most `limit` bytes of saved KV. One participant; the file has no name, so a killed process leaves nothing.

    `kind`: disk, memory (of the host, for KV on a GPU) or none. `folder`: where the file is made (default: that of
    temporary files).
    """

    def __init__(self, kind: SwapKind, limit: int, folder: str | None = None) -> None:
        self.kind, self.limit, self._folder = kind, limit, folder
        self.used = 0
        self._file: int | None = None
        self._taken: list[tuple[int, int]] = []  # (offset, size), in order

    def put(self, data: torch.Tensor) -> Saved | None:
        """Saves KV; None if there is no room for it, on the disk neither."""
        size = data.nbytes
        if self.kind == "none" or self.used + size > self.limit:
            return None
        saved = Saved(size, tuple(data.shape), data.dtype)
        if self.kind == "memory":
            saved.held = _pinned(data) if data.is_cuda else data.clone()
        else:
            saved.place = self._gap(size)
            try:
                self._write(saved.place, memoryview(_bytes(data.to("cpu"))))
            except OSError:  # the disk is full or gone: what is not saved is computed again
                return None
            self._taken.append((saved.place, size))
            self._taken.sort()
        self.used += size
        return saved

    def hold(self, data: torch.Tensor) -> Saved:
        """KV of a snapshot, which has its memory already, whatever the limit."""
        self.used += data.nbytes
        return Saved(data.nbytes, tuple(data.shape), data.dtype, held=data, foreign=True)

    def get(self, saved: Saved) -> torch.Tensor | None:
        """What was saved; it stays saved. None if the disk no longer gives it."""
        import numpy
        import torch

        if saved.held is not None:
            return saved.held
        raw = numpy.empty(saved.size, dtype=numpy.uint8)
        view, at = memoryview(raw.data), 0
        try:
            while at < saved.size:
                count = os.preadv(self._open(), [view[at:]], saved.place + at)
                if count == 0:
                    return None
                at += count
        except OSError:  # as above
            return None
        return torch.from_numpy(raw).view(saved.dtype).reshape(saved.shape)

    def drop(self, saved: Saved) -> None:
        """Forgets it, once."""
        self.used -= saved.size
        if saved.held is None:
            self._taken.remove((saved.place, saved.size))
        saved.held = None

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

    def _write(self, place: int, data: memoryview) -> None:
        file = self._open()
        while data:
            count = os.pwrite(file, data, place)
            data, place = data[count:], place + count

    def __del__(self) -> None:
        self.close()


def _pinned(data: torch.Tensor) -> torch.Tensor:
    """A copy in memory that the GPU reads and writes directly."""
    import torch

    held = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
    return held.copy_(data)


def _bytes(data: torch.Tensor) -> memoryview:
    import torch

    return memoryview(data.contiguous().view(torch.uint8).reshape(-1).numpy().data)
