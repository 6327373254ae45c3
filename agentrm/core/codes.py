"""The kernel's numbers by name, as `csrc/arm.h` and `csrc/port.h` declare them."""

from __future__ import annotations

from agentrm.core._agentrm_core import lib

# Flags of a submit.
F_RESUMED: int = lib.ARM_F_RESUMED
F_TRY: int = lib.ARM_F_TRY
F_AWAITED: int = lib.ARM_F_AWAITED

# How a lease ended.
DONE: int = lib.ARM_DONE
FAILED: int = lib.ARM_FAILED
REFUND: int = lib.ARM_REFUND

# Why the kernel refused.
E_STALE: int = lib.ARM_E_STALE
E_FULL: int = lib.ARM_E_FULL
E_TOO_LARGE: int = lib.ARM_E_TOO_LARGE
E_AGENT: int = lib.ARM_E_AGENT
E_QUEUE: int = lib.ARM_E_QUEUE
E_STATE: int = lib.ARM_E_STATE

# The strain of a pool, bit by bit.
WAITED: int = lib.ARM_WAITED
IDLE: int = lib.ARM_IDLE
TAKEN: int = lib.ARM_TAKEN

# Of one pool, those of its account included.
MAX_LIMITS: int = lib.ARM_MAX_LIMITS
