"""One call of the engine: for whom, on which chain, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agentrm.models.engine.seats import Seat, Who

if TYPE_CHECKING:
    from agentrm.models.engine.store import Chain
    from agentrm.models.engine.works import Work


def never() -> bool:
    return False


class Home(Protocol):
    """A program whose turn a call is."""

    def turn_ended(self) -> None:
        """In the loop's thread."""
        ...


@dataclass(eq=False, slots=True)
class Call:
    """One call of the engine. `home`: the program that keeps its chain afterwards, None if nobody does."""

    who: Who
    chain: Chain
    limit: int
    """Most tokens that it writes."""
    cancelled: Callable[[], bool] = never
    home: Home | None = None
    work: Work | None = None
    seat: Seat = field(default_factory=Seat)
    number: int = 0
    prompt: int = 0
    """Tokens of its prompt."""
    touched: bool = False
    """Whether anything was computed for it."""
    paused: bool = False
    ended: bool = False
    error: BaseException | None = None
    """Why it ended, if not as it should."""
    before: int = 0
    """Tokens that its earlier works have written."""

    @property
    def rank(self) -> tuple[int, int]:
        """Who comes first: by class, then arrival."""
        return self.who.klass, self.number

    @property
    def written(self) -> int:
        return self.before + (self.work.written if self.work is not None else 0)

    @property
    def chains(self) -> Sequence[Chain]:
        return (self.chain,) if self.work is None else self.work.chains
