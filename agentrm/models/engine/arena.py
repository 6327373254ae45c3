"""The memory of all KV blocks of one device: one tensor, allocated once, so that no generation can exceed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Segment = tuple[int, int]
"""Tokens from the first to before the last, as positions in the arena."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token keeps: per layer a key and a value of `heads` times `width` numbers."""

    layers: int
    heads: int
    width: int
    itemsize: int

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.width * self.itemsize


class Arena:
    """Keys and values of `blocks` blocks of `block` tokens, token by token: a program's neighbouring blocks are one
    piece of memory. On a CPU, pages that were never written cost nothing."""

    def __init__(self, shape: KVShape, block: int, blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        import torch

        self.shape, self.block, self.blocks, self.device = shape, block, blocks, device
        self.data = torch.empty(
            shape.layers, 2, blocks * block, shape.heads, shape.width, device=device, dtype=dtype
        )  # fmt: skip
        self.layers = [(layer[0], layer[1]) for layer in self.data]
        self.on_host = device.type == "cpu"
        """Whether it lies in memory that files can be written from and read into."""
        self._rows = rows_of(self.data) if self.on_host else []

    def read(self, segments: Sequence[Segment]) -> torch.Tensor:
        """A copy of these tokens, in all layers."""
        import torch

        if len(segments) == 1:
            first, last = segments[0]
            return self.data[:, :, first:last].clone()
        return torch.cat([self.data[:, :, first:last] for first, last in segments], dim=2)

    def write(self, segments: Sequence[Segment], data: torch.Tensor) -> None:
        """Puts tokens that `read` gave into these places."""
        at = 0
        for first, last in segments:
            self.data[:, :, first:last].copy_(data[:, :, at : at + last - first])
            at += last - first

    def views(self, segments: Sequence[Segment]) -> list[list[memoryview]]:
        """The memory of these tokens: for the keys and the values of each layer its places. The arena's own where it
        lies in the host's memory, else a copy."""
        rows, size = self._rows, self.shape.token_bytes // self.shape.layers // 2
        if not self.on_host:
            data = self.read(segments).cpu()
            rows, segments = rows_of(data), [(0, data.shape[2])]
        return [[row[first * size : last * size] for first, last in segments] for row in rows]

    def read_to_host(self, segments: Sequence[Segment]) -> torch.Tensor:
        """As `read`, into the host's memory: that which a GPU writes and reads directly."""
        import torch

        data = self.read(segments)
        if self.on_host:
            return data
        return torch.empty(data.shape, dtype=data.dtype, pin_memory=True).copy_(data)

    def empty(self, tokens: int) -> torch.Tensor:
        """Host memory for so many tokens, in the order of `read`."""
        import torch

        layers, _, _, heads, width = self.data.shape
        return torch.empty(layers, 2, tokens, heads, width, dtype=self.data.dtype)

    def copy(self, source: Segment, target: int) -> None:
        """Copies a few tokens within the arena; the two places do not overlap."""
        first, last = source
        self.data[:, :, target : target + last - first] = self.data[:, :, first:last]


def rows_of(data: torch.Tensor) -> list[memoryview]:
    """The bytes of each layer's keys and values, of KV that lies in the host's memory without gaps."""
    import torch

    raw = data.view(torch.uint8).reshape(data.shape[0] * 2, -1).numpy()
    return [memoryview(row) for row in raw]
