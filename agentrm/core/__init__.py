"""The C core and its Python face."""

from agentrm.core.kernel import Kernel, KernelConfig, Limit, Pool
from agentrm.core.port import Port

__all__ = ["Kernel", "KernelConfig", "Limit", "Pool", "Port"]
