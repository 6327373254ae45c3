"""One program's environments as a block."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from agentrm.threads import to_its_end
from agentrm.tools.environment import Environment

if TYPE_CHECKING:
    from agentrm.tools.environments import Environments

__all__ = ["ProgramEnvironments"]


class ProgramEnvironments:
    """One program's environments, released where the block ends (`with` and `async with` alike)."""

    __slots__ = ("_environments", "id")

    def __init__(self, environments: Environments, id: str) -> None:
        self._environments, self.id = environments, id

    def prepare(self, kind: str) -> Environment:
        """As `Environments.prepare`."""
        return self._environments.prepare(self.id, kind)

    def environment(self, kind: str) -> Environment:
        """As `Environments.get`."""
        return self._environments.get(self.id, kind)

    async def environment_async(self, kind: str) -> Environment:
        """As `Environments.get_async`."""
        return await self._environments.get_async(self.id, kind)

    def __enter__(self) -> ProgramEnvironments:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._environments.end(self.id)

    async def __aenter__(self) -> ProgramEnvironments:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await to_its_end(lambda: self._environments.end(self.id))
