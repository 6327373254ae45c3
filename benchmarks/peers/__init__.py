"""The libraries we are compared with, one module each.

A peer module says what must be installed (`DISTRIBUTION`, None for the standard library) and has `CASES`: the name of a
case to a function that sets the case up and returns its round. `benchmarks.ours` has the same for agentrm.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that could not be used, and why; it is reported, never dropped."""

    peer: str
    why: str


def find(module: str) -> ModuleType | Missing:
    """The peer's module, or why there is none."""
    try:
        return importlib.import_module(f"benchmarks.peers.{module}")
    except Exception as error:  # noqa: BLE001 - whatever a foreign package does at import is its reason
        return Missing(module, f"{type(error).__name__}: {error}")


def version(peer: ModuleType) -> str:
    """Version of the distribution, or of Python."""
    if peer.DISTRIBUTION is None:
        return getattr(peer, "VERSION", "standard library")
    try:
        return importlib.metadata.version(peer.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return getattr(peer, "VERSION", "own environment")
