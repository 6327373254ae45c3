"""Which words does a text have, how rare are they in this conversation, and what do they signal?

Words are lower-case ASCII words for the signals, and any script for search (scripts without spaces are
split into pairs of characters). No stemmer of a library: endings are cut by a short rule, which is enough
to match a plural with its singular.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

_WORDS = re.compile(r"[a-z0-9']+|[^\W_a-z0-9']+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ENDINGS = ("ingly", "edly", "ing", "ies", "ied", "ed", "es", "ly", "'s", "s")

STOP = frozenset(
    "the a an and or but of to in on at for with is are was were be been it its this that i you he she"
    " we they me my"
    " your so just as if not do did does have has had am i'm it's that's them their his her our what"
    " how when there"
    " about from by too really very can will would could which who whom where why whose".split()
)
FIRST_PERSON = frozenset("i my we our me i'm i've i'd mine us".split())
SECOND_PERSON = frozenset("you your you're yours you've".split())
GREETING = frozenset(
    "hey hi hello bye thanks thank wow great awesome cool nice congrats congratulations sounds glad"
    " luck care see"
    " okay ok yeah sure".split()
)
TIME = frozenset(
    "yesterday today tomorrow last next ago week weekend month year day monday tuesday wednesday"
    " thursday friday"
    " saturday sunday january february march april may june july august september october november"
    " december morning"
    " night since recently summer winter spring fall".split()
)
PLAN = frozenset(
    "going gonna plan planning will i'll we'll want thinking hope hoping dream goal decided signed"
    " apply applied"
    " applying".split()
)
PAST = frozenset(
    "went got made took had did found saw met gave bought won lost wrote told began started came ran"
    " read felt kept left"
    " taught learned spent built was were".split()
)
LISTED = FIRST_PERSON | SECOND_PERSON | GREETING | TIME | PLAN | PAST


@lru_cache(maxsize=65536)
def words_of(text: str) -> tuple[str, ...]:
    """The words of a text in order, lower case."""
    out: list[str] = []
    for word in _WORDS.findall(text.lower()):
        if word[0] > "\u0dff" and len(word) > 2 and _UNSPACED.match(word):
            out.extend(word[i : i + 2] for i in range(len(word) - 1))
        else:
            out.append(word)
    return tuple(out)


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def search_terms(text: str) -> list[str]:
    return [stem(w) for w in words_of(text)]


class Rarity:
    """How rare words are among the texts of one conversation: `idf(w)` = ln(texts / texts with w)."""

    def __init__(self, texts: Sequence[Collection[str]]) -> None:
        self.texts = max(1, len(texts))
        self.count: Counter[str] = Counter()
        for words in texts:
            self.count.update(set(words))
        self.known = {w: math.log(self.texts / n) for w, n in self.count.items()}

    def idf(self, word: str) -> float:
        return self.known.get(word, 0.0)

    def mass(self, words: frozenset[str] | set[str]) -> float:
        idf = self.known
        return sum([idf.get(w, 0.0) for w in words])


class Coverage:
    """The rare words of each text, and where each word stands: what a choice of texts covers is kept up to date by the
    words that are new in it, not counted again for every text."""

    def __init__(self, texts: Sequence[Collection[str]], rarity: Rarity, digits: float) -> None:
        """`digits` is what a number among words counts, against 1 for a word."""
        import numpy as np

        rows: dict[str, list[int]] = {}
        for number, words in enumerate(texts):
            for word in words:
                rows.setdefault(word, []).append(number)
        self.texts = texts
        self.total = np.full(len(texts), 1e-9)
        self._places: dict[str, tuple[Any, float]] = {}
        for word, where in rows.items():
            mass = rarity.idf(word) * (digits if word.isdigit() else 1.0)
            if mass:
                self._places[word] = (np.array(where), mass)
                self.total[where] += mass

    def cover(self, row: int, fresh: Any, covered: set[str]) -> None:
        """Takes what text `row` says away from `fresh`, the mass of words of each text that nothing chosen says."""
        for word in self.texts[row]:
            if word not in covered:
                covered.add(word)
                place = self._places.get(word)
                if place is not None:
                    fresh[place[0]] -= place[1]


class BM25:
    """Okapi BM25 (k1 1.5, b 0.75) over texts given as word lists;

    an inverted index, so a query costs its postings.
    """

    def __init__(self, texts: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75) -> None:
        self.size = len(texts)
        average = sum(map(len, texts)) / max(1, self.size) or 1.0
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for number, words in enumerate(texts):
            norm = k1 * (1 - b + b * len(words) / average)
            for word, count in Counter(words).items():
                weight = count * (k1 + 1) / (count + norm)
                self._postings.setdefault(word, []).append((number, weight))

    def scores(self, query: Sequence[str]) -> list[float]:
        out = [0.0] * self.size
        for word in set(query):
            found = self._postings.get(word, ())
            idf = math.log(1 + (self.size - len(found) + 0.5) / (len(found) + 0.5))
            for number, weight in found:
                out[number] += idf * weight
        return out
