"""Which blocks would each policy have had in the cache? Replacement policies over the requests of a trace.

A request finds what is cached when it begins; then all of its blocks are the newest, the head newer than the tail (as
engines free a sequence from its tail), and what is too much is thrown out. Belady may bypass: a block of the request
whose next use is farther away than that of all others is not kept.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from agentrm.errors import AgentRMError
from agentrm.simulation.kv_trace import KVTrace, Request

__all__ = ["Belady", "Cache", "LRU", "POLICIES", "hit_tokens", "replay"]

TTL_S = 300.0


class Cache(Protocol):
    """A cache under one policy."""

    def request(self, request: Request) -> int:
        """Serves one request; how many of its blocks were there."""
        ...


class LRU:
    """Least recently used first. `ttl_s`: whatever was not used for so long is gone; `ends`: when programs end is
    known, and what they leave goes first; `fifo`: by the time of entry instead of the last use."""

    def __init__(
        self, trace: KVTrace, capacity: int, *, ttl_s: float | None = None, ended: bool = False, fifo: bool = False
    ) -> None:
        self._size, self._capacity, self._ttl_s, self._fifo = trace.size, capacity, ttl_s, fifo
        self._cached: OrderedDict[int, list[float]] = OrderedDict()  # run -> blocks, time of use; oldest first
        self._used = 0
        self._ends = sorted(_known_ends(trace)) if ended else []
        self._runs_of = {r.program: r.runs for r in trace.requests if r.last}

    def request(self, request: Request) -> int:
        if self._ttl_s is not None:
            while self._cached and next(iter(self._cached.values()))[1] < request.at - self._ttl_s:
                self._used -= int(self._cached.popitem(last=False)[1][0])
        while self._ends and self._ends[0][0] <= request.at:
            for run in self._runs_of[self._ends.pop(0)[1]]:
                if run in self._cached:
                    self._cached.move_to_end(run, last=False)
        hit = 0
        for run in reversed(request.runs):
            entry, size = self._cached.get(run), self._size[run]
            if entry is None:
                self._cached[run] = [size, request.at]
                self._used += size
                continue
            hit += int(entry[0])
            self._used += size - int(entry[0])
            entry[0], entry[1] = size, request.at
            if not self._fifo:
                self._cached.move_to_end(run)
        while self._used > self._capacity:
            run, entry = next(iter(self._cached.items()))
            gone = min(int(entry[0]), self._used - self._capacity)
            self._used -= gone
            entry[0] -= gone
            if not entry[0]:
                del self._cached[run]
        return hit


class Belady:
    """The optimum (Belady 1966): whatever is used again latest goes first. It knows the future."""

    def __init__(self, trace: KVTrace, capacity: int) -> None:
        self._size, self._capacity, self._used = trace.size, capacity, 0
        self._cached: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._at = 0
        never = len(trace.requests)
        later: dict[int, int] = {}
        uses: list[list[int]] = []
        for number in range(never - 1, -1, -1):
            runs = trace.requests[number].runs
            uses.append([later.get(run, never) for run in runs])
            later.update(dict.fromkeys(runs, number))
        self._uses = uses[::-1]

    def request(self, request: Request) -> int:
        uses = self._uses[self._at]
        self._at += 1
        hit = 0
        for place, (run, use) in enumerate(zip(request.runs, uses, strict=True)):
            cached, size = self._cached.get(run, 0), self._size[run]
            hit += cached
            self._used += size - cached
            self._cached[run], self._next[run] = size, use
            heapq.heappush(self._heap, (-use, -place, run))
        while self._used > self._capacity:
            use, _, run = self._heap[0]
            cached = self._cached.get(run, 0)
            if not cached or self._next[run] != -use:
                heapq.heappop(self._heap)
                continue
            gone = min(cached, self._used - self._capacity)
            self._used -= gone
            self._cached[run] = cached - gone
        return hit


def _known_ends(trace: KVTrace) -> Iterable[tuple[float, int]]:
    """Programs whose end somebody announces when it comes: agents that return a result. People just go away."""
    for i, program in enumerate(trace.programs):
        if announces_end(program.id):
            yield program.calls[-1].ends, i


def announces_end(program_id: str) -> bool:
    """Sub-agents and batch agents return; a person's own session does not say that it was the last word."""
    return "/" in program_id


def replay(trace: KVTrace, cache: Cache) -> int:
    """Input tokens that were found in the cache."""
    found = 0
    for request in trace.requests:
        hit = cache.request(request)
        found += min(request.tokens, hit * trace.block_tokens)  # the last block may not be full
    return found


def hit_tokens(trace: KVTrace, cache: Cache) -> float:
    """Share of the input tokens that were found in the cache."""
    return replay(trace, cache) / trace.input_tokens


def _agentrm(trace: KVTrace, capacity: int) -> Cache:
    try:
        from agentrm.simulation.kv_learned import Guarded
    except ImportError as missing:
        raise AgentRMError("the policy agentrm learns with numpy: pip install numpy") from missing

    return Guarded(trace, capacity)


POLICIES: dict[str, Callable[[KVTrace, int], Cache]] = {
    "lru": LRU,
    "fifo": lambda trace, capacity: LRU(trace, capacity, fifo=True),
    "ttl": lambda trace, capacity: LRU(trace, capacity, ttl_s=TTL_S),
    "ended": lambda trace, capacity: LRU(trace, capacity, ended=True),
    "agentrm": _agentrm,
    "belady": Belady,
}
"""By name: least recently used; first in, first out; whatever is idle for five minutes goes; ended programs first;
ours; the optimum."""
