"""The C core and its Python face."""

from agentrm.core.blocks import BlockPool, BlockStatistics, BlockTap, Chain, Evicted, block_hashes
from agentrm.core.kernel import Kernel, KernelConfig, KVPool, Limit, Pool
from agentrm.core.port import Port

__all__ = [
    "BlockPool",
    "BlockStatistics",
    "BlockTap",
    "Chain",
    "Evicted",
    "KVPool",
    "Kernel",
    "KernelConfig",
    "Limit",
    "Pool",
    "Port",
    "block_hashes",
]
