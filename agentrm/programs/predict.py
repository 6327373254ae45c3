"""When is a program's next turn, how much will it write, and is it over? Learnt while it runs, from what was seen.

Three small online learners, each a mixture that leans on the most special evidence as soon as there is enough of it:
the program's own past, then its tool's, then everybody's. Nothing is fixed beforehand but weak priors.
"""

from __future__ import annotations

import math
from bisect import bisect_left

__all__ = ["IdleTimes", "ProgramEnds", "TurnTokens"]

_BINS_PER_OCTAVE = 2
_FIRST_S = 1 / 32
EDGES = tuple(_FIRST_S * 2 ** (i / _BINS_PER_OCTAVE) for i in range(44))
"""Upper edges of the bins of idle time, in seconds: from 1/32 s to about 26 hours."""
MIDDLES = tuple(e / 2 ** (0.5 / _BINS_PER_OCTAVE) for e in (*EDGES, EDGES[-1] * 2))
_BINS = len(MIDDLES)
_MEMORY = 256.0
"""Observations after which the older half of a histogram's weight has faded: tools and people change their pace."""


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0.0] * _BINS
        self.total = 0.0

    def add(self, at: int) -> None:
        if self.total >= 2 * _MEMORY:
            self.counts = [c / 2 for c in self.counts]
            self.total /= 2
        self.counts[at] += 1
        self.total += 1


class IdleTimes:
    """How long programs stay idle between an answer and the next turn.

    `strength`: how many observations of the special kind weigh as much as what the general kind says.
    """

    def __init__(self, strength: float = 4.0, most_keys: int = 50_000) -> None:
        self._strength, self._most = strength, most_keys
        self._all = _Histogram()
        self._of: dict[tuple[str, str], _Histogram] = {}
        prior = [1.0 / (1.0 + abs(math.log2(m))) for m in MIDDLES]  # about a second, give or take everything
        self._prior = [p / sum(prior) for p in prior]

    def learn(self, program: str, tool: str | None, idle_s: float) -> None:
        """One idle time came to its end."""
        at = bisect_left(EDGES, idle_s)
        self._all.add(at)
        for key in (("tool", tool or ""), ("program", program)):
            found = self._of.get(key)
            if found is None:
                if len(self._of) >= self._most:
                    self._of.pop(next(iter(self._of)))
                found = self._of[key] = _Histogram()
            found.add(at)

    def forget(self, program: str) -> None:
        """The program is over; what its tools showed stays."""
        self._of.pop(("program", program), None)

    def shares(self, program: str, tool: str | None) -> list[float]:
        """The predicted distribution over the bins whose middles are `MIDDLES`; sums to 1."""
        shares = self._prior
        for found in (self._all, self._of.get(("tool", tool or "")), self._of.get(("program", program))):
            if found is not None and found.total:
                weight = self._strength / (self._strength + found.total)
                rest = (1 - weight) / found.total
                shares = [weight * s + rest * c for s, c in zip(shares, found.counts, strict=True)]
        return shares

    def expect(self, program: str, tool: str | None, gone: float = 0.0) -> Idle:
        """What is expected of an idle time that begins now; `gone`: the probability that there is no further turn."""
        return Idle(self.shares(program, tool), gone)


class Idle:
    """The distribution of one idle time; with probability `gone` it never ends."""

    __slots__ = ("_mass", "_time")

    def __init__(self, shares: list[float], gone: float = 0.0) -> None:
        here = 1.0 - gone
        mass, time = gone, 0.0
        self._mass, self._time = [gone] * (_BINS + 1), [0.0] * (_BINS + 1)  # of this bin and all later ones
        for i in range(_BINS - 1, -1, -1):
            mass += here * shares[i]
            time += here * shares[i] * MIDDLES[i]
            self._mass[i], self._time[i] = mass, time

    def median(self) -> float:
        """Seconds; the largest that is told apart if it is likely never to end."""
        return next((MIDDLES[i] for i in range(_BINS) if self._mass[i + 1] < 0.5), MIDDLES[-1])

    def remaining(self, idle_s: float) -> float:
        """Seconds still to be expected after `idle_s` of idling, counting "never" as the longest time there is."""
        at = bisect_left(EDGES, idle_s)
        mass = self._mass[at]
        if mass < 1e-9:
            return max(idle_s, MIDDLES[-1])
        return max((self._time[at] + self._mass[_BINS] * MIDDLES[-1]) / mass - idle_s, 0.0)

    def hold_for(self, break_even_s: float) -> float:
        """How long to keep the cache for it, when keeping it costs one per second and computing it again costs
        `break_even_s`: the stopping time of the smallest expected cost. 0: give it up at once."""
        best, at = break_even_s, 0.0
        for i, edge in enumerate(EDGES):
            left = self._mass[i + 1]
            cost = self._time[0] - self._time[i + 1] + left * (edge + break_even_s)
            if cost < best:
                best, at = cost, edge
        return at


class TurnTokens:
    """How many tokens a turn writes: mean and deviation, of the program once it has had a few turns, else of all."""

    def __init__(self, first_guess: float = 400.0, fading: float = 0.2) -> None:
        self._fading = fading
        self._all = (first_guess, first_guess)
        self._of: dict[str, tuple[float, float]] = {}

    def learn(self, program: str, tokens: int) -> None:
        mean, deviation = self._all
        slow = self._fading / 10
        self._all = (mean + slow * (tokens - mean), deviation + slow * (abs(tokens - mean) - deviation))
        mean, deviation = self._of.get(program, self._all)
        step = self._fading
        self._of[program] = (mean + step * (tokens - mean), deviation + step * (abs(tokens - mean) - deviation))

    def expect(self, program: str) -> int:
        """Tokens that its next turn will seldom surpass: mean and one deviation."""
        mean, deviation = self._of.get(program, self._all)
        return round(mean + deviation)

    def forget(self, program: str) -> None:
        self._of.pop(program, None)


class ProgramEnds:
    """Whether a program that has answered will ever come back: by how many turns it has had and whether its answer
    asked for a tool (an answer that asks for none is mostly the last word)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bool, int], list[float]] = {}

    @staticmethod
    def _key(turns: int, tool: str | None) -> tuple[bool, int]:
        return tool is not None, turns.bit_length()

    def learn(self, turns: int, tool: str | None, ended: bool) -> None:
        seen = self._seen.setdefault(self._key(turns, tool), [0.0, 0.0])
        seen[0] += ended
        seen[1] += 1

    def expect(self, turns: int, tool: str | None) -> float:
        """Probability that there is no further turn."""
        ended, seen = self._seen.get(self._key(turns, tool), (0.0, 0.0))
        return (ended + 0.5) / (seen + 20.0)
