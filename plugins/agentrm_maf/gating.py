"""Who makes a call of the Agent Framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrm.adapters import read_options
from agentrm.adapters.copies import Gate
from agentrm.adapters.identity import Identity

__all__ = ["make_gate"]


def make_gate(rm: Any, where: str, given: Mapping[str, Any], agent: str | None = None) -> Gate:
    """From the keyword arguments of `where`; `agent`: what the framework calls it."""
    return Gate(rm, *read_options(where, given), Identity(agent=agent))
