"""A trace as a cache sees it: requests in order of time, each a list of runs of blocks that are always used
together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrm.simulation.traces import TracedProgram

__all__ = ["KVTrace", "Request"]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `runs`: the prompt's runs of blocks, head first."""

    at: float
    ends: float
    program: int
    call: int
    runs: tuple[int, ...]
    blocks: int
    tokens: int
    last: bool
    """Whether it is the program's last, which only Belady may know."""


class KVTrace:
    """All requests; `size[run]` is how many blocks a run has."""

    def __init__(self, programs: Sequence[TracedProgram]) -> None:
        self.programs = programs
        self._memo: dict[str, Any] = {}
        self.block_tokens = programs[0].block_tokens
        self.size: list[int] = []
        self.requests: list[Request] = []
        numbered = [self._bounds(programs)] if programs[0].shared else []
        for i, program in enumerate(programs):
            bounds, base = numbered[0] if numbered else self._bounds([program])
            for k, call in enumerate(program.calls):
                runs = tuple(
                    base + r
                    for first, count in call.extents
                    for r in range(bisect_left(bounds, first), bisect_left(bounds, first + count))
                )
                blocks = sum(n for _, n in call.extents)
                last = k + 1 == len(program.calls)
                self.requests.append(Request(call.at, call.ends, i, k, runs, blocks, call.input_tokens, last))
        self.requests.sort(key=lambda r: (r.at, r.program, r.call))
        self.input_tokens = sum(r.tokens for r in self.requests)

    def memo(self, name: str, make: Callable[[], Made]) -> Made:
        """Something that depends on the trace alone, made once."""
        if name not in self._memo:
            self._memo[name] = make()
        made: Made = self._memo[name]
        return made

    def _bounds(self, programs: Sequence[TracedProgram]) -> tuple[list[int], int]:
        """Cuts the ids wherever any call begins or ends a stretch: what lies between is used together or not at all."""
        cuts = {
            edge
            for program in programs
            for call in program.calls
            for first, count in call.extents
            for edge in (first, first + count)
        }
        bounds, base = sorted(cuts), len(self.size)
        self.size += [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
        return bounds, base
