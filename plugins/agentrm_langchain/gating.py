"""What a gated object of LangChain knows about the call that begins: who makes it, and who wants a heartbeat."""

from __future__ import annotations

from typing import Any

from agentrm.adapters import CallSpec, read_options
from agentrm.adapters.copies import Gate as PlainGate
from agentrm.adapters.copies import gate_of, gated_copy, like, plain_view
from agentrm_langchain.surroundings import NOWHERE, Surroundings, here

__all__ = ["Gate", "gate_of", "gated_copy", "like", "make_gate", "plain_view"]


class Gate(PlainGate):
    """A way into a manager that looks for the caller where LangChain keeps him."""

    __slots__ = ()

    def spec(self, handed: Surroundings | None = None, **call: Any) -> CallSpec:
        """What is known about the call that begins here."""
        who, beat = here(self.arguments, NOWHERE if handed is None else handed)
        return self.call(who, heartbeat=beat, **call)


def make_gate(rm: Any, where: str, given: dict[str, Any]) -> Gate:
    """From the keyword arguments of `where`: those of an identity, and `OPTIONS`."""
    return Gate(rm, *read_options(where, given))
