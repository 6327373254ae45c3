"""The gateway: an OpenAI-compatible address in front of any number of engines (`agentrm serve`, extra `gateway`).

A request is identified (`keys`), read (`asked`), let in when its program has room on an engine (`desk`), passed on and
answered (`relay`), and settled exactly once however it ends.
"""

from __future__ import annotations

try:
    from agentrm.gateway.server import Gateway
    from agentrm.gateway.threaded import GatewayThread
except ModuleNotFoundError as missing:
    from agentrm.adapters.lazy import FrameworkMissing

    package = (missing.name or "agentrm").partition(".")[0]
    if package == "agentrm":  # a fault of ours
        raise
    raise FrameworkMissing("agentrm.gateway", package, "gateway") from missing

__all__ = ["Gateway", "GatewayThread"]
