"""A generation frozen at a token: as text (tokens and settings), or with its KV. Into a file and out of it elsewhere.

Resumed with KV it goes on bit by bit where it was. Resumed from text its KV is computed again: the prompt at once, what
was generated token by token below float32, so that rounding is what it was.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.models.errors import SnapshotCorrupt

if TYPE_CHECKING:
    import torch

_VERSION = 2
_KIND, _CHECKSUM = "agentrm-generation", "checksum"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`kind`: text or beams. `tokens`: of each chain, the prompt's first. `written`: tokens so far. `settings`: what
    was asked for, as JSON values. `sampler`: the state of the random generator. `kv`: of each chain, or none."""

    model: str
    """A digest of the weights and their type."""
    kind: str
    prompt: int
    written: int
    tokens: tuple[tuple[int, ...], ...]
    settings: dict[str, Any]
    sampler: torch.Tensor | None = None
    kv: tuple[torch.Tensor, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return sum(kv.nbytes for kv in self.kv) + 8 * sum(map(len, self.tokens))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes one file: whole, or not at all. Raises OSError."""
        import torch
        from safetensors.torch import save_file

        tensors = {f"kv.{i}": kv.contiguous() for i, kv in enumerate(self.kv)}
        tensors |= {f"tokens.{i}": torch.tensor(tokens, dtype=torch.int64) for i, tokens in enumerate(self.tokens)}
        if self.sampler is not None:
            tensors["sampler"] = self.sampler
        described = {
            "version": _VERSION, "model": self.model, "kind": self.kind, "prompt": self.prompt,
            "written": self.written, "settings": self.settings,
        }  # fmt: skip
        text = json.dumps(described)
        metadata = {_KIND: text, _CHECKSUM: str(_checksum(text, tensors))}
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            save_file(tensors, unfinished, metadata=metadata)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Reads what `save` wrote. Raises SnapshotCorrupt for anything else, OSError if there is no such file."""
        from safetensors import SafetensorError, safe_open

        os.stat(path)  # says so itself if there is no file
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                described = json.loads(metadata[_KIND])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            if described["version"] != _VERSION:
                raise SnapshotCorrupt(Path(path), f"version {described['version']}, this library reads {_VERSION}")
            if metadata[_CHECKSUM] != str(_checksum(metadata[_KIND], tensors)):
                raise SnapshotCorrupt(Path(path), "its checksum does not match")
            count = sum(name.startswith("tokens.") for name in tensors)
            kvs = sum(name.startswith("kv.") for name in tensors)
            return cls(
                described["model"], described["kind"], described["prompt"], described["written"],
                tuple(tuple(tensors[f"tokens.{i}"].tolist()) for i in range(count)), described["settings"],
                tensors.get("sampler"), tuple(tensors[f"kv.{i}"] for i in range(kvs)),
            )  # fmt: skip
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SnapshotCorrupt(Path(path), f"{type(error).__name__}: {error}") from error


def _checksum(described: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Of all that a file says: a changed bit of KV would go on as other text."""
    import torch

    total = zlib.crc32(described.encode())
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(tensors[name].cpu().contiguous().view(torch.uint8).numpy().data, total)
    return total
