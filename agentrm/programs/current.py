"""Which program does a call made here belong to? Carried by a context variable, as the identity is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType

from agentrm.threads import to_its_end

__all__ = ["CurrentProgram", "current_program"]

_program: ContextVar[str | None] = ContextVar("agentrm_program", default=None)


def current_program() -> str | None:
    """The id of the program that calls made here and now belong to; None outside of any."""
    return _program.get()


class CurrentProgram:
    """Context manager (sync and async alike): calls inside, in tasks and context-copying threads too, belong to the
    program. At the end `ended(id)` is called once, whatever happened inside, by `async with` without blocking the loop.
    Programs nest: the inner one counts.

    Raises ValueError for an empty id.
    """

    __slots__ = ("_ended", "_token", "id")

    def __init__(self, id: str, ended: Callable[[str], object]) -> None:
        if not id:
            raise ValueError("a program needs an id: any text that is not empty")
        self.id, self._ended = id, ended
        self._token: Token[str | None] | None = None

    def __enter__(self) -> CurrentProgram:
        if self._token is not None:
            raise RuntimeError(f"program {self.id!r} is entered already; make another with rm.program(id)")
        self._token = _program.set(self.id)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            _program.reset(self._token)
            self._token = None
            self._ended(self.id)

    async def __aenter__(self) -> CurrentProgram:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._token is not None:
            _program.reset(self._token)
            self._token = None
            await to_its_end(lambda: self._ended(self.id))  # it may have to wait for processes to go
