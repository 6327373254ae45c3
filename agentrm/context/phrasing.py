"""How much of a text is phrased as nothing else in the session is?

Set phrases (greetings, status lines, forms that are filled in again and again) say little that the rest of a session
does not say too; what is said once can't be had from anywhere else. Measured on pairs of neighbouring words, so that
a form is seen as one whatever it is filled with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FREE = 0.7  # novelty from which a text counts in full: people who talk freely stay above it
_STEEPNESS = 4
_EDGE = -1


def novelty(texts: Sequence[Sequence[int]]) -> Any:
    """For each text, its words given by number (`incidence.WordNumbers`), 0 to 1: the mean information of its pairs of
    neighbouring words, -ln(share among the pairs of all texts), as a part of what a pair has that is there once. The
    edge of a text counts as a word."""
    import numpy as np

    flat, sizes = [_EDGE], []
    for words in texts:
        flat += words
        flat.append(_EDGE)
        sizes.append(len(words) + 1)
    if len(flat) < 3:
        return np.ones(len(texts))
    row = np.array(flat, dtype=np.int64) - _EDGE
    _, pair, count = np.unique(row[:-1] * (row.max() + 1) + row[1:], return_inverse=True, return_counts=True)
    news = 1 - np.log(count) / np.log(len(pair))
    return np.add.reduceat(news[pair], np.cumsum([0, *sizes[:-1]])) / np.array(sizes)


def fresh_share(novelty: Sequence[float]) -> Any:
    """Which share of its worth a text of such a novelty has beside others of its session: 1 for free speech, and ever
    less for a set phrase, one of which says nearly what the next says."""
    import numpy as np

    return np.minimum(1.0, np.array(novelty) / _FREE) ** _STEEPNESS
