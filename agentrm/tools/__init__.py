"""Tools of agents: the environments in which they run, bound to the programs that use them.

How tools run beside each other is configured (`tools`, docs/tools.md) and decided by the kernel.
"""

from __future__ import annotations

from agentrm.tools.environment import Environment, EnvironmentStatistics
from agentrm.tools.environments import Environments
from agentrm.tools.errors import (
    EnvironmentEnded,
    EnvironmentLeft,
    EnvironmentLost,
    SetupFailed,
    SetupTimeout,
    ToolEnvironmentError,
)
from agentrm.tools.journal import default_home
from agentrm.tools.leftovers import Leftover, clean, leftovers
from agentrm.tools.place import Completed, Place, Provider, Usage
from agentrm.tools.program import ProgramEnvironments

__all__ = [
    "Completed",
    "Environment",
    "EnvironmentEnded",
    "EnvironmentLeft",
    "EnvironmentLost",
    "EnvironmentStatistics",
    "Environments",
    "Leftover",
    "Place",
    "ProgramEnvironments",
    "Provider",
    "SetupFailed",
    "SetupTimeout",
    "ToolEnvironmentError",
    "Usage",
    "clean",
    "default_home",
    "leftovers",
]
