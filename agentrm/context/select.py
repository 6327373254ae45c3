"""Which groups stay whole, which passages become notes, within a number of tokens?

Greedy by expected uses per token, with diminishing returns: a passage that says what a chosen one says
(nearest neighbours by embedding) counts for less. A step of this is a multiple-choice knapsack relaxed to
densities, which is within one item of the optimum of the relaxation (Dantzig 1957).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrm.context.incidence import Unsaid
from agentrm.context.worth import Candidate, Worth

_REDUNDANCY = 0.15
_COVERAGE = 0.4  # how much of its worth a passage loses when its rare words are all there already
_LINE_OVERHEAD = 5  # tokens of the reference and separators of a note


@dataclass(frozen=True, slots=True)
class Choice:
    """Group indexes that stay whole, and candidates that become notes."""

    groups: frozenset[int]
    lines: tuple[Candidate, ...]
    used: int


def choose(
    worth: Worth,
    cost_of_group: Mapping[int, int],
    tokens_of: Sequence[int],
    budget: int,
    taken: frozenset[int],
    *,
    power: float = 1.0,
) -> Choice:
    """Fills the budget. `cost_of_group` has the groups that may stay whole; a candidate of any other
    group may become a note,

    unless its group is in `taken`. `tokens_of` is the size of each candidate's text. `power` below 1 weighs
    size less.
    """
    penalty = [0.0] * len(worth.candidates)
    unsaid = worth.unsaid.fresh() if worth.unsaid is not None else None
    heap: list[tuple[float, int]] = []

    def density(row: int) -> float:
        cost = _cost(row, worth.candidates[row], cost_of_group, tokens_of)
        value = worth.candidates[row].value * (1 - _REDUNDANCY * penalty[row])
        return float(value * _share_unsaid(worth, row, unsaid) / max(1, cost) ** power)

    open_rows: list[int] = []
    for row, candidate in enumerate(worth.candidates):
        if candidate.group in taken or (candidate.group not in cost_of_group and not _is_note(candidate)):
            _mark(worth, row, penalty, unsaid)
        else:
            open_rows.append(row)
    heap = [(-density(row), row) for row in open_rows]
    heapq.heapify(heap)
    groups: set[int] = set()
    lines: list[Candidate] = []
    left = budget
    while heap and left > 0:
        key, row = heapq.heappop(heap)
        candidate = worth.candidates[row]
        cost = _cost(row, candidate, cost_of_group, tokens_of)
        if cost > left or candidate.group in groups:
            continue
        now = -density(row)
        if now > key + 1e-12:  # something chosen since says part of it: lower its place, never raise it
            heapq.heappush(heap, (now, row))
            continue
        left -= cost
        if candidate.group in cost_of_group:
            groups.add(candidate.group)
        else:
            lines.append(candidate)
        _mark(worth, row, penalty, unsaid)
    return Choice(frozenset(groups), tuple(lines), budget - left)


def _share_unsaid(worth: Worth, row: int, unsaid: Unsaid | None) -> float:
    """1 when no rare word of the passage is in what was chosen, down to 1 - _COVERAGE when all are."""
    if unsaid is None:
        return 1.0
    strength = _COVERAGE / 2 if worth.candidates[row].states_rule else _COVERAGE
    return float(1 - strength + strength * unsaid.left[row] / unsaid.total[row])


def _is_note(candidate: Candidate) -> bool:
    return candidate.message.role != "tool" and not candidate.message.calls


def _cost(row: int, candidate: Candidate, groups: Mapping[int, int], tokens_of: Sequence[int]) -> int:
    whole = groups.get(candidate.group)
    return whole if whole is not None else tokens_of[row] + _LINE_OVERHEAD


def _mark(worth: Worth, row: int, penalty: list[float], unsaid: Unsaid | None) -> None:
    """The words of a chosen passage are said; its neighbours are worth less by how near they are."""
    if unsaid is not None:
        unsaid.say(row)
    if worth.near is None:
        return
    near = zip(worth.near.similarities[row].tolist(), worth.near.rows[row].tolist(), strict=True)
    for similarity, other in near:
        if similarity > penalty[other]:
            penalty[other] = similarity
