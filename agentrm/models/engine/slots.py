"""Where blocks lie in memory: a block goes behind its program's previous one wherever that is free.

Neighbouring blocks are read as one piece, without a copy, so a program's blocks should be neighbours. A new program
holds room for its growth; held room is only a wish, and given to others when nothing else is left.
"""

from __future__ import annotations

_FREE, _USED, _HELD = 0, 1, 2


class Slots:
    """Places 0 to `count` - 1. The caller never takes more than there are."""

    __slots__ = ("_state",)

    def __init__(self, count: int) -> None:
        self._state = bytearray(count)

    def take(self, after: int | None, wish: int) -> int:
        """A free place: the one behind `after` if it can be had, else one with room for `wish` blocks in a row, or as
        many as there are."""
        state = self._state
        if after is not None and after + 1 < len(state) and state[after + 1] != _USED:
            state[after + 1] = _USED
            return after + 1
        row = max(1, min(wish, len(state)))
        while (place := state.find(bytes(row))) < 0 and row > 1:
            row //= 2
        if place < 0:
            place, row = state.index(_HELD), 1
        state[place : place + row] = bytes([_USED]) + bytes([_HELD]) * (row - 1)
        return place

    def give(self, place: int) -> None:
        """Frees a place, and what was held behind it."""
        state = self._state
        state[place] = _FREE
        place += 1
        while place < len(state) and state[place] == _HELD:
            state[place] = _FREE
            place += 1
