"""Who makes a call of the Agent Framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrm.adapters import CallSpec, read_options
from agentrm.adapters.copies import Gate
from agentrm.adapters.identity import Identity, first_answers
from agentrm.identity import NOBODY, current_identity

__all__ = ["AgentGate", "make_gate"]


class AgentGate(Gate):
    """`named`: what the framework calls the agent, which counts where nothing else says who asks."""

    __slots__ = ("named",)

    def __init__(self, rm: Any, arguments: Identity, options: Mapping[str, Any], named: Identity = NOBODY) -> None:
        super().__init__(rm, arguments, options)
        self.named = named

    def spec(self, **call: Any) -> CallSpec:
        return self.call(first_answers(self.arguments, current_identity(), self.named), **call)


def make_gate(rm: Any, where: str, given: Mapping[str, Any], agent: str | None = None) -> AgentGate:
    """From the keyword arguments of `where`."""
    return AgentGate(rm, *read_options(where, given), Identity(agent=agent))
