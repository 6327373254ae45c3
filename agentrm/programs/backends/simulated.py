"""An engine without a network: whoever drives it says how it is. For simulations and tests of what decides."""

from __future__ import annotations

from agentrm.programs.backends.protocol import (
    Backend,
    Capabilities,
    Reply,
    Settings,
    Signals,
    Transport,
    TransportError,
)

__all__ = ["Simulated"]


class Simulated(Backend):
    """Tells what `now` holds, None if it is down; notes which programs were paused and forgotten."""

    def __init__(self, name: str, transport: Transport | None = None, settings: Settings | None = None) -> None:
        super().__init__(name, transport or _Nowhere(), settings)
        self.now: Signals | None = Signals(healthy=True)
        self.paused: list[str] = []
        self.forgotten: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(swap=True)

    async def signals(self) -> Signals:
        if self.now is None:
            raise TransportError(f"{self.name} is down")
        return self.now

    async def pause(self, program: str) -> bool:
        self.paused.append(program)
        return True

    async def forget(self, program: str) -> None:
        self.forgotten.append(program)


class _Nowhere:
    async def request(self, method: object, path: str, body: object = None) -> Reply:
        raise TransportError(f"a simulated engine has no {path}")
