"""The engines that serve programs: what they tell of themselves, and what they can be asked to do.

A backend is a `Backend` subclass per kind of engine, found by name through the entry points `agentrm.backends`. It
holds no connection: whoever makes it passes a `Transport`.
"""

from __future__ import annotations

from agentrm.programs.backends.poll import poll
from agentrm.programs.backends.protocol import (
    MOST_TOKENS,
    UNKNOWN,
    Backend,
    Capabilities,
    Reply,
    Settings,
    Signals,
    Transport,
    TransportError,
    Usage,
)
from agentrm.programs.backends.registry import kinds, load

__all__ = [
    "MOST_TOKENS",
    "UNKNOWN",
    "Backend",
    "Capabilities",
    "Reply",
    "Settings",
    "Signals",
    "Transport",
    "TransportError",
    "Usage",
    "kinds",
    "load",
    "poll",
]
