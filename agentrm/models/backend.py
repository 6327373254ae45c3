"""A local engine as a backend of agentic programs: what their scheduler pauses is swapped out here."""

from __future__ import annotations

import asyncio

from agentrm.models.local import LocalEngine
from agentrm.models.programs import Program
from agentrm.programs.backends.protocol import (
    UNKNOWN,
    Backend,
    Capabilities,
    Reply,
    Signals,
    TransportError,
)


class LocalBackend(Backend):
    """Programs by their id, each with the KV of its conversation: give `program(id)` to the engine's calls.

    `pause` takes a program's KV out of memory, its next call brings it back; `forget` ends it. Used from one event
    loop, which none of its verbs holds up."""

    def __init__(self, engine: LocalEngine, name: str = "local") -> None:
        super().__init__(name, _NoAddress())
        self.engine = engine
        self._programs: dict[str, Program] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(swap=True, hold=True, flush=True)

    def program(self, id: str) -> Program:
        """The program of that id; it begins with the first call for it."""
        if id not in self._programs:
            self._programs[id] = self.engine.program(id)
        return self._programs[id]

    async def signals(self) -> Signals:
        if self.engine.closed:
            return UNKNOWN
        seen = await asyncio.to_thread(self.engine.statistics)
        blocks = sum(one.blocks for one in seen)
        return Signals(
            healthy=True,
            running=sum(one.calls - one.waiting for one in seen),
            waiting=sum(one.waiting for one in seen),
            kv_used=sum(one.used_blocks for one in seen) / blocks,
            capacity=sum(one.blocks * one.block_tokens for one in seen),
            block=max(one.block_tokens for one in seen),
            hit_tokens=sum(one.cached_tokens for one in seen),
            preempted=sum(one.switches for one in seen),
            engines=len(seen),
        )

    async def pause(self, program: str) -> bool:
        known = self._programs.get(program)
        return known is not None and await asyncio.to_thread(known.swap_out)

    async def forget(self, program: str) -> None:
        known = self._programs.pop(program, None)
        if known is not None:
            known.close()

    async def flush(self) -> bool:
        await asyncio.to_thread(self.engine.flush)
        return True


class _NoAddress:
    async def request(self, method: object, path: str, body: object = None) -> Reply:
        raise TransportError(f"a local engine has no {path}: call it through its own methods")
