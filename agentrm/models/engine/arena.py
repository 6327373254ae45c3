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

    def copy(self, source: Segment, target: int) -> None:
        """Copies a few tokens within the arena; the two places do not overlap."""
        first, last = source
        self.data[:, :, target : target + last - first] = self.data[:, :, first:last]
