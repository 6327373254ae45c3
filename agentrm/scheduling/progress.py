"""How a hang is told from slowness: by the silences that healthy calls of the same model have shown.

A call that streams shows progress with each chunk. Its first chunk is due after three times the slowest recent time to
first chunk (for its size), 2 s at least: until then nothing has reached anybody and another attempt is invisible. That
attempt gets twice as long, so that a provider that has just become slower is not taken for a dead one. The next chunk
is due after six times the slowest recent gap, 15 s at least; both 120 s at most. A call that does not stream is one
silence from start to end: six times the slowest recent duration, 60 to 300 s. Nothing is presumed of a model that has
not been seen: 120 s to its first chunk, 60 s to the next, 300 s without any.
"""

from __future__ import annotations

__all__ = ["LONGEST_NS", "Progress"]

S = 1_000_000_000
LONGEST_NS = 300 * S
"""No limit that was learnt is longer."""
TOKENS_PER_UNIT = 4000
"""So many more tokens double the time that a first chunk may take (reading the prompt is linear in its length)."""


class Slowest:
    """The slowest of the last 64 to 128 observations, None while there are fewer than `least`."""

    __slots__ = ("_before", "_count", "_least", "_now", "_seen")

    def __init__(self, least: int) -> None:
        self._least = least
        self._now = self._before = self._count = self._seen = 0

    def add(self, ns: int) -> None:
        """One more that took `ns` nanoseconds; what came before the last whole batch of 64 is forgotten."""
        self._count += 1
        self._seen += 1
        if ns > self._now:
            self._now = ns
        if self._count == 64:
            self._before, self._now, self._count = self._now, 0, 0

    def value(self) -> int | None:
        return max(self._now, self._before) if self._seen >= self._least else None


class Progress:
    """What one model of a pool has shown. Times in nanoseconds, sizes in tokens."""

    __slots__ = ("_first", "_gap", "_whole")

    def __init__(self) -> None:
        self._first, self._gap, self._whole = Slowest(4), Slowest(8), Slowest(4)

    def began(self, after_ns: int, tokens: int) -> None:
        """The first chunk came."""
        self._first.add(after_ns * TOKENS_PER_UNIT // (TOKENS_PER_UNIT + tokens))

    def went_on(self, after_ns: int) -> None:
        """Another chunk came."""
        self._gap.add(after_ns)

    def ended(self, after_ns: int, tokens: int) -> None:
        """A call without chunks ended well."""
        self._whole.add(after_ns * TOKENS_PER_UNIT // (TOKENS_PER_UNIT + tokens))

    def limit_ns(self, tokens: int, *, streams: bool, begun: bool, again: bool = False) -> int:
        """How long such a call may be silent now. `again`: it is another attempt."""
        if begun:
            return _limit(self._gap.value(), 6, 15 * S, 120 * S, 60 * S)
        kind, margin, least, most, unknown = (
            (self._first, 3, 2 * S, 120 * S, 120 * S) if streams else (self._whole, 6, 60 * S, LONGEST_NS, LONGEST_NS)
        )
        slowest = kind.value()
        if slowest is not None:
            slowest = slowest * (TOKENS_PER_UNIT + tokens) // TOKENS_PER_UNIT
        return _limit(slowest, margin, least, most, unknown) * (2 if again else 1)


def _limit(slowest: int | None, margin: int, least: int, most: int, unknown: int) -> int:
    return unknown if slowest is None else min(most, max(least, margin * slowest))
