"""Ours: keep the blocks of the programs whose next call is worth waiting for, and of each the head of its context.

Programs are ranked by an index of the Gittins kind: the largest, over all times to hold on, of the probability that the
next call has come by then over the expected time that the blocks are held for it. The distribution of that time is
learnt: boosted trees, trained on *other* programs than the one they predict (two halves, by the task's name), sort the
calls into classes by what is known at the time; how long the calls of a class really took is counted online, as
the replay goes on. Whoever has not come back in the time in which the cache is written over three times, at most an
hour, counts as gone.

A guess can be worse than none: `Guarded` replays the learnt order and LRU beside the cache and follows whichever found
more lately ("set dueling": Qureshi et al., "Adaptive insertion policies for high performance caching", 2007). Needs
numpy.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrm.simulation.boosting import Array, BoostedTrees
from agentrm.simulation.kv_policies import LRU, announces_end
from agentrm.simulation.kv_trace import KVTrace, Request
from agentrm.simulation.traces import TracedProgram

__all__ = ["Guarded", "Learned"]

RUNNING, IDLE = 0, 1
"""What the time until the next call is counted from: the beginning of this one, or its end once that has come."""
CENSORED_S = 3600.0
TURNOVERS = 3.0
"""Who has not come back after so many times the time in which the cache is written over, at most `CENSORED_S`, counts
as gone: it would not be found any more, and waiting for more would leave only those that return to learn from."""
WINDOW = 1000.0
"""Calls over which the learnt order and LRU are compared; what is older fades."""
MARGIN = 0.01
"""The learnt order is followed while it finds more than LRU by this share: a smaller lead is chance, and each change of
the rule costs what the other would have kept."""
POOL = 0.6
"""How far the program's own past and its class's are trusted; 1 would take them as independent."""
REFRESH = 250
"""With more programs than this the ranking is made anew only every few requests."""
CLASSES_PER_OCTAVE = 1.5
EDGES = 0.05 * 2 ** (np.arange(90) / 4)
"""Upper edges of the bins of time in seconds, 0.05 s to 3 days."""
_STARTS = np.concatenate([[0.0], EDGES])
_WIDTHS = np.diff(np.concatenate([_STARTS, [EDGES[-1] * 1.5]]))
_BINS = len(EDGES) + 1


def _log(value: float) -> float:
    return math.log2(max(value, 0.01))


def _kinds(programs: Sequence[TracedProgram]) -> dict[str | None, int]:
    return {kind: i for i, kind in enumerate(sorted({c.tool or "" for p in programs for c in p.calls}))}


def _newest(values: list[float], otherwise: float) -> list[float]:
    return (values[::-1] + [otherwise] * 3)[:3]


def features(program: TracedProgram, kinds: dict[str | None, int]) -> tuple[list[list[float]], list[list[float]]]:
    """Of each call what is known when it begins, and when it has ended."""
    begun, over = [], []
    gaps: list[float] = []
    idles: list[float] = []
    outputs: list[float] = []
    grown: list[float] = []
    tools: list[float] = []
    for k, call in enumerate(program.calls):
        before = program.calls[k - 1] if k else None
        if before is not None:
            gaps.append(_log(call.at - before.at))
            idles.append(_log(call.at - before.ends))
            grown.append(_log(call.input_tokens - before.input_tokens - before.output_tokens))
        row = [_log(call.input_tokens), _log(k + 1), sum(gaps) / k if k else 3.0]
        row += _newest(gaps, 3.0) + _newest(idles, 0.0) + _newest(outputs, 6.0) + _newest(grown, 8.0)
        row += _newest(tools, 0.0)[:2]
        outputs.append(_log(call.output_tokens))
        tools.append(float(kinds[call.tool or ""]))
        begun.append(row)
        over.append([*row, outputs[-1], tools[-1], _log(call.ends - call.at)])
    return begun, over


def _half(program: TracedProgram) -> int:
    """Runs of one task, and a session with its sub-agents, are in the same half."""
    parts = program.id.split("/")
    task = parts[-1] if parts[0].startswith("bs") else parts[0]
    return hashlib.blake2b(task.encode()).digest()[0] % 2


def classes(programs: Sequence[TracedProgram]) -> tuple[list[list[int]], list[list[int]]]:
    """Of each program's calls the class that was predicted when they began, and when they had ended."""
    kinds = _kinds(programs)
    each = [features(p, kinds) for p in programs]
    halves = np.array([_half(p) for p in programs for _ in p.calls])
    found = []
    for moment in (RUNNING, IDLE):
        rows = np.array([row for f in each for row in f[moment]])
        target = np.array([
            _log(p.calls[k + 1].at - (c.ends if moment else c.at)) if k + 1 < len(p.calls) else math.nan
            for p in programs for k, c in enumerate(p.calls)
        ])  # fmt: skip
        predicted = np.zeros(len(rows))
        for half in (0, 1):
            learn, apply = (halves != half) & ~np.isnan(target), halves == half
            if learn.any() and apply.any():
                predicted[apply] = BoostedTrees().fit(rows[learn], target[learn]).predict(rows[apply])
        numbers = iter(np.floor(predicted * CLASSES_PER_OCTAVE).astype(int).tolist())
        found.append([list(itertools.islice(numbers, len(p.calls))) for p in programs])
    return found[0], found[1]


def gittins(shares: Array) -> Array:
    """The index at the beginning of each bin of the time that has passed, from the shares of the bins."""
    reached = np.concatenate([[0.0], np.cumsum(shares)])
    held = np.concatenate([[0.0], np.cumsum((2.0 - reached[:-1] - reached[1:]) / 2 * _WIDTHS)])
    won, paid = reached[None, :] - reached[:, None], held[None, :] - held[:, None]
    index: Array = np.triu(np.where(paid > 1e-12, won / np.where(paid > 1e-12, paid, 1.0), 0.0), 1).max(1)
    return index


class _Times:
    """Counted times by key, the general before the special."""

    def __init__(self) -> None:
        self._counts: dict[Any, Array] = {}

    def add(self, keys: Sequence[Any], at: int) -> None:
        for key in keys:
            self._counts.setdefault(key, np.zeros(_BINS))[at] += 1

    def shares(self, keys: Sequence[Any]) -> Array:
        """What the program's own past and its class's say beyond what all say, multiplied (a log-linear pool)."""
        every, kind, own, alike = keys
        base = self._leaning(self._leaning(np.full(_BINS, 1.0 / _BINS), every, 8.0), kind, 8.0)
        own, alike = self._leaning(base, own, 16.0), self._leaning(base, alike, 8.0)
        pooled = own**POOL * alike**POOL * base ** (1 - 2 * POOL)
        shares: Array = pooled / pooled.sum()
        return shares

    def _leaning(self, shares: Array, key: Any, strength: float) -> Array:
        counts = self._counts.get(key)
        return shares if counts is None else (strength * shares + counts) / (strength + counts.sum())


class _Held:
    """What one program has in the cache."""

    __slots__ = ("blocks", "call", "gone", "index", "request", "stack")

    def __init__(self) -> None:
        self.blocks = 0
        self.call = -1
        self.gone = False  # whether it was counted as one that does not come back
        self.request: Request | None = None
        self.stack: list[int] = []  # its runs; what goes first is last
        self.index: dict[int, Array] = {}


class Learned:
    """The cache. It never looks at a time that has not come."""

    def __init__(self, trace: KVTrace, capacity: int) -> None:
        self._by_recency = False
        self._trace, self._capacity, self._used = trace, capacity, 0
        self._classes = trace.memo("classes", lambda: classes(trace.programs))  # whatever the capacities
        self._times = _Times()
        self._cached: dict[int, int] = {}
        self._newest: OrderedDict[int, None] = OrderedDict()  # runs by their last use; what is gone leaves when met
        self._owner: dict[int, int] = {}
        self._held: dict[int, _Held] = {}
        self._ranking: list[tuple[float, float, int, int]] = []  # the least worth last
        self._asked = 0
        self._awaited: list[tuple[float, int, int]] = []
        self._written, self._since, self._turnover = 0, trace.requests[0].at, math.inf
        self._ends = {i: p.calls[-1].ends for i, p in enumerate(trace.programs) if announces_end(p.id)}

    def _keys(self, program: int, call: int, moment: int) -> list[Any]:
        kind = self._trace.programs[program].calls[call].tool if moment == IDLE else None
        return [
            (moment,), (moment, kind), (moment, kind, "program", program),
            (moment, kind, "class", self._classes[moment][program][call]),
        ]  # fmt: skip

    def follow(self, *, by_recency: bool) -> None:
        """By recency: out goes what was used least recently, as in `LRU`. Otherwise: who is least worth waiting for."""
        if by_recency != self._by_recency:
            self._by_recency, self._ranking = by_recency, []

    def request(self, request: Request) -> int:
        """Serves one request; how many of its blocks were there."""
        self._learn(request)
        held = self._held.setdefault(request.program, _Held())
        hit = 0
        for run in request.runs:
            cached, size = self._cached.get(run, 0), self._trace.size[run]
            hit += cached
            owner = self._owner.get(run)
            if owner is not None and owner != request.program:
                self._held[owner].blocks -= cached
                held.blocks += size
            else:
                held.blocks += size - cached
            self._used += size - cached
            self._written += size - cached
            self._cached[run], self._owner[run] = size, request.program
        for run in reversed(request.runs):
            self._newest[run] = None
            self._newest.move_to_end(run)
        now = set(request.runs)
        held.stack = [*request.runs, *(r for r in held.stack if r not in now and self._cached.get(r))]
        held.request, held.call, held.index, held.gone = request, request.call, {}, False
        if self._written >= self._capacity:
            self._turnover, self._since, self._written = request.at - self._since, request.at, 0
        if self._by_recency:
            self._drop_oldest()
        elif self._used > self._capacity:
            self._make_room(request.at)
        return hit

    def _learn(self, request: Request) -> None:
        while self._awaited and self._awaited[0][0] <= request.at:
            _, program, call = heapq.heappop(self._awaited)
            if self._held[program].call == call:
                self._held[program].gone = True
                for moment in (RUNNING, IDLE):
                    self._times.add(self._keys(program, call, moment), _BINS - 1)
        held = self._held.get(request.program)
        if held is not None and held.request is not None:
            before = held.request
            if not held.gone:
                took = int(np.searchsorted(EDGES, request.at - before.at))
                self._times.add(self._keys(request.program, before.call, RUNNING), took)
                if request.at >= before.ends:
                    took = int(np.searchsorted(EDGES, request.at - before.ends))
                    self._times.add(self._keys(request.program, before.call, IDLE), took)
        patience = min(CENSORED_S, TURNOVERS * self._turnover)
        heapq.heappush(self._awaited, (request.ends + patience, request.program, request.call))

    def _drop_oldest(self) -> None:
        while self._used > self._capacity:
            run = next(iter(self._newest))
            cached = self._cached.get(run, 0)
            gone = min(cached, self._used - self._capacity)
            self._used -= gone
            if gone:
                self._held[self._owner[run]].blocks -= gone
                self._cached[run] = cached - gone
            if gone == cached:
                del self._newest[run]

    def _make_room(self, now: float) -> None:
        while self._used > self._capacity:
            if not self._ranking:
                held = [(p, h, h.request) for p, h in self._held.items() if h.blocks and h.request is not None]
                ranking = [(self._worth(p, h, r, now), r.at, p, r.call) for p, h, r in held]
                self._ranking = sorted(ranking, reverse=True)
                self._asked = 0
            _, _, program, call = self._ranking.pop()
            if self._held[program].call == call:
                self._shrink(program, self._held[program])
        self._asked += 1
        if self._asked >= max(1, len(self._held) // REFRESH):
            self._ranking = []

    def _worth(self, program: int, held: _Held, request: Request, now: float) -> float:
        if self._ends.get(program, math.inf) < now:
            return -1.0
        moment = IDLE if now >= request.ends else RUNNING
        index = held.index.get(moment)
        if index is None:
            index = held.index[moment] = gittins(self._times.shares(self._keys(program, request.call, moment)))
        passed = now - (request.ends if moment == IDLE else request.at)
        at = int(np.searchsorted(EDGES, passed))
        along = min(1.0, (passed - _STARTS[at]) / _WIDTHS[at])
        return float(index[at] * (1 - along) + index[min(at + 1, _BINS - 1)] * along)

    def _shrink(self, program: int, held: _Held) -> None:
        while held.stack and self._used > self._capacity:
            run = held.stack[-1]
            cached = self._cached.get(run, 0) if self._owner.get(run) == program else 0
            gone = min(cached, self._used - self._capacity)
            self._used -= gone
            held.blocks -= gone
            if cached:
                self._cached[run] = cached - gone
            if gone == cached:
                held.stack.pop()


class Guarded:
    """The cache: by the learnt order while that finds more than LRU does, else by recency."""

    def __init__(self, trace: KVTrace, capacity: int) -> None:
        self._cache, self._learned, self._lru = Learned(trace, capacity), Learned(trace, capacity), LRU(trace, capacity)
        self._lead = self._found = 0.0  # blocks: what the learnt order found more than LRU, and what LRU found

    def request(self, request: Request) -> int:
        """As `Cache.request`; the comparison counts from the next request on."""
        self._cache.follow(by_recency=self._lead <= MARGIN * self._found)
        found = self._lru.request(request)
        self._lead += self._learned.request(request) - found - self._lead / WINDOW
        self._found += found - self._found / WINDOW
        return self._cache.request(request)
