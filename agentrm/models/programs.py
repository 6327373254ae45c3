"""A program: one agent's conversation with a model, whose KV is kept between its turns."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from agentrm.models.engine.store import Chain
from agentrm.models.errors import ProgramBusy

if TYPE_CHECKING:
    from agentrm.models.engine.loop import Loop


class Program:
    """Made by `LocalEngine.program` and given to its calls. Between turns its KV stays in memory as long as there is
    room, then in the swap space; a turn computes only what its prompt does not share with what came before. One turn at
    a time. It ends when it is closed, when its block is left, or when nobody holds it any more."""

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self._loop, self._chain = loop, Chain()
        self._busy = threading.Lock()

    @property
    def tokens(self) -> int:
        """How many tokens its conversation has so far."""
        return len(self._chain.tokens)

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self._busy.locked()

    @property
    def place(self) -> tuple[Loop, Chain]:
        """Where its turns run."""
        return self._loop, self._chain

    def begin_turn(self) -> None:
        """Raises ProgramBusy. The loop calls `turn_ended`."""
        if not self._busy.acquire(blocking=False):
            raise ProgramBusy(self.name)

    def turn_ended(self) -> None:
        self._busy.release()

    def swap_out(self) -> bool:
        """Takes its KV out of memory now, between two turns; the next one brings it back. Whether it is saved: not
        while a turn runs, and not where the swap space is full."""
        loop, chain = self._loop, self._chain
        return loop.ask(lambda: loop.swap_out(chain))

    def close(self) -> None:
        """Ends it and the turn that runs, and frees its memory. Again it does nothing; a later turn begins anew."""
        loop, chain = self._loop, self._chain
        loop.post(lambda: loop.forget(chain, self))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        loop, chain = self._loop, self._chain
        if chain.tokens and not loop.closed:
            loop.post(lambda: loop.forget(chain))

    def __repr__(self) -> str:
        return f"<Program {self.name!r}, {self.tokens} tokens{', in a turn' if self.busy else ''}>"
