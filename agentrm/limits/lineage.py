"""Which agent was started by which: a chain carried by a context variable, from the running agent up to its root."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["Kin", "current_kin"]


class Kin:
    """One agent that another one started. `depth`: 1 for a child of the root."""

    __slots__ = ("agent", "depth", "parent")

    def __init__(self, agent: str, parent: Kin | None) -> None:
        self.agent, self.parent = agent, parent
        self.depth: int = 0 if parent is None else parent.depth + 1

    def line(self) -> Iterator[Kin]:
        """This one, its parent, and so on up to the root."""
        kin: Kin | None = self
        while kin is not None:
            yield kin
            kin = kin.parent

    def __repr__(self) -> str:
        return f"<Kin {' < '.join(kin.agent for kin in self.line())}>"


_kin: ContextVar[Kin | None] = ContextVar("agentrm_kin", default=None)


def current_kin() -> Kin | None:
    """The agent that runs here, if it was started by `Guards.child`."""
    return _kin.get()
