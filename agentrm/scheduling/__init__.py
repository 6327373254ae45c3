"""Pools, leases, waiters and the reaper: who runs when."""

from agentrm.scheduling.lease import Lease, current_lease
from agentrm.scheduling.manager import ResourceManager

__all__ = ["Lease", "ResourceManager", "current_lease"]
