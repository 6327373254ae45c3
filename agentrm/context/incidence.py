"""Which words stand in which texts of one conversation, how rare are they, and what does a choice of texts say?

The words of all texts lie in flat arrays, so that what is asked of every text is answered for all at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

__all__ = ["Incidence", "Unsaid", "WordNumbers"]


class WordNumbers(dict[str, int]):
    """A number for each distinct word, from 0 in the order in which they came: whoever asks about the same texts reads
    them once."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number

    def of(self, words: Iterable[str]) -> list[int]:
        return list(map(self.__getitem__, words))


class Incidence:
    """Each distinct word of each text, in the order of the texts. `row[i]` is the text and `word[i]` the number of the
    word of the i-th such pair, `count[w]` in how many texts word w is, `idf[w]` = ln(texts / count[w])."""

    def __init__(self, texts: Sequence[Iterable[int]], numbers: WordNumbers) -> None:
        """`texts` are words as `numbers` has them; it has no other words."""
        import numpy as np

        self.ids = numbers
        flat: list[int] = []
        sizes: list[int] = []
        for words in texts:
            own = dict.fromkeys(words)
            flat += own
            sizes.append(len(own))
        self.texts = len(texts)
        self.word = np.array(flat, dtype=np.int64)
        self.row = np.repeat(np.arange(self.texts), sizes)
        self.starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self.count = np.bincount(self.word, minlength=len(self.ids))
        self.idf = np.log(max(1, self.texts) / self.count)

    @classmethod
    def of(cls, texts: Iterable[Iterable[str]]) -> Incidence:
        """The same of words that have no number yet."""
        numbers = WordNumbers()
        return cls([numbers.of(words) for words in texts], numbers)

    def per_text(self, weights: Any) -> Any:
        """The sum of the pairs' `weights` in each text."""
        import numpy as np

        return np.bincount(self.row, weights, self.texts)

    def mass(self, words: Iterable[str]) -> float:
        """The idf of all words, those that no text has being worth nothing."""
        at, idf = self.ids.get, self.idf
        return math.fsum(idf[i] for w in words if (i := at(w)) is not None)

    def distance(self) -> Any:
        """For each pair, how many texts ago its word was seen last; more than there are texts for the first time."""
        import numpy as np

        order = np.argsort(self.word, kind="stable")  # by word, then text
        rows, words = self.row[order], self.word[order]
        ago = np.full(len(order), self.texts + 100)
        again = words[1:] == words[:-1]
        ago[1:][again] = (rows[1:] - rows[:-1])[again]
        out = np.empty_like(ago)
        out[order] = ago
        return out


class Unsaid:
    """What each text has to say that nothing chosen says yet, by the rarity of its words: `left`, of `total` at first.
    Kept up to date by the words that are new in a choice, not counted again for every text. A choice is made on a
    `fresh` one."""

    def __init__(self, words: Incidence, digits: float) -> None:
        """`digits` is what a number among words counts, against 1 for a word."""
        import numpy as np

        self._words = words
        self._mass = words.idf * np.array([digits if w.isdigit() else 1.0 for w in words.ids])
        self.total = 1e-9 + words.per_text(self._mass[words.word])
        order = np.argsort(words.word, kind="stable")
        self._rows = words.row[order]
        self._ends = np.cumsum(words.count)
        self.left = self.total
        # a word of one text takes nothing from others, and a word of all texts says nothing
        self._open = (words.count > 1) & (self._mass > 0)

    def fresh(self) -> Unsaid:
        """The same with nothing chosen, for one choice: several may go on at once."""
        other = copy(self)
        other.left, other._open = self.total.copy(), self._open.copy()
        return other

    def say(self, row: int) -> None:
        """Text `row` is chosen."""
        starts = self._words.starts
        own = self._words.word[starts[row] : starts[row + 1]]
        new = own[self._open[own]]
        self._open[new] = False
        for word in new.tolist():
            end = self._ends[word]
            self.left[self._rows[end - self._words.count[word] : end]] -= self._mass[word]
