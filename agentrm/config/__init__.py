"""The configuration of a manager: typed, checked at construction, immutable.

`load(path_or_mapping)` gives a `Config`. Each section is a dataclass in which each key stands with its
meaning, unit, range and default; `docs/configuration.md` is made from them.
"""

from __future__ import annotations

from agentrm.config.configuration import DEFAULT_POOL, DEFAULT_TENANT, ENVIRONMENT_POOL, TOOL_POOL, Config, tool_pool
from agentrm.config.gateway import Gateway, GatewayBackend, GatewayKey, GatewayTls
from agentrm.config.loading import load, parse
from agentrm.config.prices import Price, PriceWarning
from agentrm.config.schema import Setting
from agentrm.config.sections import (
    Account,
    Backfill,
    Budget,
    Context,
    Limit,
    Pool,
    Reaper,
    Retry,
    Scheduling,
    Tenant,
    Waiting,
)
from agentrm.config.tools import ConflictGroup, Environments, Kind, Tool

__all__ = [
    "DEFAULT_POOL",
    "DEFAULT_TENANT",
    "ENVIRONMENT_POOL",
    "TOOL_POOL",
    "Account",
    "Backfill",
    "Budget",
    "Config",
    "ConflictGroup",
    "Context",
    "Gateway",
    "GatewayBackend",
    "GatewayKey",
    "GatewayTls",
    "Environments",
    "Kind",
    "Limit",
    "Pool",
    "Price",
    "PriceWarning",
    "Reaper",
    "Retry",
    "Scheduling",
    "Setting",
    "Tenant",
    "Tool",
    "Waiting",
    "load",
    "parse",
    "tool_pool",
]
