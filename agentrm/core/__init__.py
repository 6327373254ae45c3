"""The C core and its Python face."""

from agentrm.core.blocks import BlockPool, block_hashes
from agentrm.core.chains import BlockStatistics, Chain, Evicted
from agentrm.core.kernel import Kernel, KernelConfig, KVPool, Limit, Pool
from agentrm.core.port import Port
from agentrm.core.tap import BlockTap

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
