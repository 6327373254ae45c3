"""The C core and its Python face."""

from agentrm.core.kernel import Kernel, KernelConfig, Limit, Pool

__all__ = ["Kernel", "KernelConfig", "Limit", "Pool"]
