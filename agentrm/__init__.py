"""agentrm: the resource manager for LLM agents.

`ResourceManager` owns what agents share (lanes, rates, context, memory); `identity` says who is asking; everything else
hangs on those two. Importing this package loads no framework and no numeric library.
"""

from __future__ import annotations

from agentrm.access import AccessRequest, Authorise
from agentrm.cancellation import cancellable
from agentrm.clock import Clock, MonotonicClock, VirtualClock
from agentrm.errors import (
    AccessDenied,
    AdmissionError,
    AgentRMError,
    BlockQuotaExceeded,
    BlocksExhausted,
    ConfigError,
    ForkedError,
    IdleTimeout,
    KernelError,
    LeaseError,
    ManagerClosed,
    QueueFull,
    QueueTimeout,
    RequestTooLarge,
    RunTimeout,
    ScopeClosed,
    WorkCancelled,
    WouldDeadlock,
)
from agentrm.identity import Identity, current_identity, identity
from agentrm.limits.errors import (
    BudgetExceeded,
    LoopDetected,
    OutputLimit,
    PriceUnknown,
    SpawnRefused,
    StepLimit,
)
from agentrm.scheduling import Lease, ResourceManager, current_lease

__all__ = [
    "AccessDenied",
    "AccessRequest",
    "AdmissionError",
    "AgentRMError",
    "Authorise",
    "BlockQuotaExceeded",
    "BlocksExhausted",
    "BudgetExceeded",
    "Clock",
    "ConfigError",
    "ForkedError",
    "Identity",
    "IdleTimeout",
    "KernelError",
    "Lease",
    "LeaseError",
    "LoopDetected",
    "ManagerClosed",
    "MonotonicClock",
    "OutputLimit",
    "PriceUnknown",
    "QueueFull",
    "QueueTimeout",
    "RequestTooLarge",
    "ResourceManager",
    "RunTimeout",
    "ScopeClosed",
    "SpawnRefused",
    "StepLimit",
    "VirtualClock",
    "WorkCancelled",
    "WouldDeadlock",
    "cancellable",
    "current_identity",
    "current_lease",
    "identity",
]
__version__ = "0.1.0"
