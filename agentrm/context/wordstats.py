"""Which words does a text have, how rare are they in this conversation, and what do they signal?

Words are lower-case ASCII words for the signals, and any script for search (scripts without spaces are
split into pairs of characters). No stemmer of a library: endings are cut by a short rule, which is enough
to match a plural with its singular.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

_WORDS = re.compile(r"[a-z0-9']+|[^\W_a-z0-9']+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ENDINGS = ("ingly", "edly", "ing", "ies", "ied", "ed", "es", "ly", "'s", "s")

STOP = frozenset(
    "the a an and or but of to in on at for with is are was were be been it its this that i you he she we they me my"
    " your so just as if not do did does have has had am i'm it's that's them their his her our what how when there"
    " about from by too really very can will would could which who whom where why whose".split()
)
FIRST_PERSON = frozenset("i my we our me i'm i've i'd mine us".split())
SECOND_PERSON = frozenset("you your you're yours you've".split())
GREETING = frozenset(
    "hey hi hello bye thanks thank wow great awesome cool nice congrats congratulations sounds glad luck care see"
    " okay ok yeah sure".split()
)
TIME = frozenset(
    "yesterday today tomorrow last next ago week weekend month year day monday tuesday wednesday thursday friday"
    " saturday sunday january february march april may june july august september october november december morning"
    " night since recently summer winter spring fall".split()
)
PLAN = frozenset(
    "going gonna plan planning will i'll we'll want thinking hope hoping dream goal decided signed apply applied"
    " applying".split()
)
PAST = frozenset(
    "went got made took had did found saw met gave bought won lost wrote told began started came ran read felt kept"
    " left taught learned spent built was were".split()
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
