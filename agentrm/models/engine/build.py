"""Puts an engine's parts together for one device: how much memory, how many blocks, how many calls at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from agentrm.errors import ConfigError
from agentrm.models.engine.arena import Arena
from agentrm.models.engine.forward import Forward
from agentrm.models.engine.loop import Loop
from agentrm.models.engine.seats import Turns
from agentrm.models.engine.store import Store
from agentrm.models.engine.swap import Swap, SwapKind

if TYPE_CHECKING:
    import torch

    from agentrm.models.loading import LoadedModel

BLOCK_TOKENS = 32
_LANES = {"cpu": 8}
_CHUNK = {"cpu": 256}
_LANES_GPU, _CHUNK_GPU = 64, 2048


@dataclass(frozen=True, slots=True)
class Memory:
    """`kv`: bytes of KV per device, None for what is sensible. `swap`: where KV goes when that is full, at most
    `swap_bytes` of it; None: the disk for a CPU, the host's memory for a GPU."""

    kv: int | None = None
    swap: SwapKind | None = None
    swap_bytes: int | None = None


def lanes_for(device: torch.device) -> int:
    """How many calls are computed at once unless something else is said."""
    return _LANES.get(device.type, _LANES_GPU)


def build_loop(loaded: LoadedModel, memory: Memory, lanes: int, turns: Turns) -> Loop:
    """The loop of one device. Raises ConfigError if the memory does not hold a block, UnsupportedModel."""
    import torch

    forward = Forward(loaded.weights, loaded.device)
    shape = forward.shape
    block_bytes = BLOCK_TOKENS * shape.token_bytes
    most = -(-loaded.context // BLOCK_TOKENS) * lanes
    limit = _sensible(loaded.device, most * block_bytes) if memory.kv is None else memory.kv
    if limit < block_bytes:
        raise ConfigError("memory", limit, f"at least {block_bytes} bytes, one block of {BLOCK_TOKENS} tokens")
    blocks = min(limit // block_bytes, 1 << 24)
    cpu = loaded.device.type == "cpu"
    kind = memory.swap or ("disk" if cpu else "memory")
    arena = Arena(shape, BLOCK_TOKENS, blocks, loaded.device, loaded.dtype)
    swap = Swap(arena, kind, 4 * limit if memory.swap_bytes is None else memory.swap_bytes)
    store = Store(arena, swap, exact=loaded.dtype != torch.float32)
    return Loop(forward, store, turns, _CHUNK.get(loaded.device.type, _CHUNK_GPU))


def _sensible(device: torch.device, most: int) -> int:
    """What all lanes can use, but no more than a quarter of the machine's memory or 80 % of what is free on a GPU."""
    import torch

    if device.type == "cuda":
        return min(most, int(torch.cuda.mem_get_info(device)[0] * 0.8))
    return min(most, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


def fingerprint(loaded: LoadedModel) -> str:
    """Tells weights apart, and types of the same weights."""
    import torch

    from agentrm.models.engine.linear import beginning

    digest = blake2b(digest_size=16)
    for name, weight in sorted(loaded.weights.named_parameters(remove_duplicate=False)):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(beginning(loaded.weights, name, weight).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
