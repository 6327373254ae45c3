"""How often will a passage of this conversation be needed again?

The offline optimum evicts what is used farthest in the future (Belady, IBM Systems Journal 5(2), 1966).
Online, future use is predicted by a linear model from what can be seen now: how rare the words are, whether
the passage states something or asks, chats or greets, names things, answers a question, repeats or opens a
subject, and how near it is to the rest by embedding. `reuse_weights` holds the weights; `python -m
agentrm.evaluation.train_reuse` makes them from annotated conversations, split by conversation. The model
sees no question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentrm.context import wordstats as ws
from agentrm.context.incidence import Incidence
from agentrm.context.reuse_weights import DIRECTION, REUSE, REUSE_LEXICAL, Weights
from agentrm.context.similarity import Nearest

if TYPE_CHECKING:
    from agentrm.context.embed import Matrix

NEIGHBOURS = 20
_FLOOR = 0.02  # nothing is worth nothing: a cheap passage may fill what is left of a budget
_REMEMBERED = 6  # passages after which a word counts as new again
_CAPITAL = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+")
_NUMBER = re.compile(r"\d+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

LEXICAL_FEATURES = (
    "mass",
    "root_mass",
    "statement_mass",
    "statement_share",
    "capitals",
    "capitals_per_token",
    "numbers",
    "answers_question",
    "is_question",
    "questions",
    "first_person",
    "second_person",
    "second_person_per_token",
    "past",
    "time",
    "plan",
    "greeting",
    "media",
    "opening",
    "tokens",
    "rare",
    "uncommon_per_token",
    "new_per_token",
    "next_tokens",
    "next_questions",
    "exclamations",
)
SIMILARITY_FEATURES = ("density", "near_density", "repeats", "next_similarity")


@dataclass(frozen=True, slots=True)
class Passage:
    """What is judged: a message's text or a piece of one. `opening` is True for the first after a pause."""

    text: str
    author: str
    media: bool = False
    opening: bool = False


@dataclass(frozen=True, slots=True)
class _Own:
    """What the features take from a text alone;

    `stated` are the words of its statements, None if it has no question.
    """

    tokens: float
    stated: frozenset[str] | None
    before: tuple[float, ...]
    behind: tuple[float, ...]
    exclamations: int


@lru_cache(maxsize=65536)
def _own_counts(text: str) -> _Own:
    words = ws.words_of(text)
    tokens = max(1.0, len(text) / 4)
    sentences = _SENTENCE_END.split(text)
    statements = [s for s in sentences if not s.endswith("?")]
    stated = None
    if len(statements) < len(sentences):
        stated = frozenset(w for s in statements for w in ws.words_of(s))
    capitals = len(_CAPITAL.findall(text))
    listed = [w for w in words if w in ws.LISTED]  # few: the lists are asked about these alone
    you = sum([w in ws.SECOND_PERSON for w in listed])
    past = sum([w in ws.PAST for w in listed])
    return _Own(
        tokens,
        stated,
        (len(statements) / len(sentences), capitals, capitals / tokens, min(3, len(_NUMBER.findall(text)))),
        (
            float(text.rstrip().endswith("?")),
            text.count("?"),
            sum([w in ws.FIRST_PERSON for w in listed]),
            you,
            you / tokens,
            past + sum([w[-2:] == "ed" and len(w) > 3 and w not in ws.PAST for w in words]),
            sum([w in ws.TIME for w in listed]),
            sum([w in ws.PLAN for w in listed]),
            sum([w in ws.GREETING for w in listed]),
        ),
        text.count("!"),
    )


def lexical_features(passages: Sequence[Passage], words: Incidence | None = None) -> Any:
    """Array (passages, LEXICAL_FEATURES). Only words: no embedding is needed. `words`: those of the passages, where
    they were counted before."""
    import numpy as np

    words = Incidence.of(ws.words_of(p.text) for p in passages) if words is None else words
    idf, count = words.idf[words.word], words.count[words.word]
    masses = words.per_text(idf).tolist()
    new = words.per_text(idf * (words.distance() > _REMEMBERED)).tolist()
    rare = words.per_text(count <= 2).tolist()
    scarce = words.per_text((count > 2) & (count <= 6)).tolist()
    rows = []
    for i, passage in enumerate(passages):
        fixed = _own_counts(passage.text)
        tokens, mass = fixed.tokens, masses[i]
        stated = mass if fixed.stated is None else words.mass(fixed.stated)
        previous = passages[i - 1] if i else None
        following = passages[i + 1] if i + 1 < len(passages) else None
        answers = (
            previous is not None
            and previous.author != passage.author
            and previous.text.rstrip().endswith("?")
        )
        rows.append(
            (
                mass,
                math.sqrt(mass),
                stated,
                *fixed.before,
                float(answers),
                *fixed.behind,
                float(passage.media),
                float(passage.opening),
                tokens,
                rare[i],
                scarce[i] / tokens,
                new[i] / tokens,
                min(2.0, len(following.text) / 160) if following else 0.0,
                following.text.count("?") if following else 0.0,
                fixed.exclamations,
            )
        )
    return np.array(rows, dtype=np.float64).reshape(len(passages), len(LEXICAL_FEATURES))


@dataclass(frozen=True, slots=True)
class Closeness:
    """The nearest other passages of each passage, by FAISS: similarities and row numbers, best first."""

    similarities: Any
    rows: Any


def closeness(vectors: Matrix, k: int = NEIGHBOURS) -> Closeness:
    """The k nearest others of each row, itself left out."""
    import numpy as np

    sims, rows = Nearest(vectors, approximate=True).search(vectors, k + 1)
    missing = rows < 0  # an inverted file may find fewer: itself, at similarity 0, stands in
    if missing.any():
        rows = np.where(missing, np.arange(len(vectors))[:, None], rows)
        sims = np.where(missing, 0.0, sims)
    itself = (rows == np.arange(len(vectors))[:, None]) & ~missing
    itself[~itself.any(axis=1), -1] = True  # equal texts can push a row out of its own list
    keep = ~itself
    width = rows.shape[1] - 1
    return Closeness(sims[keep].reshape(len(vectors), width), rows[keep].reshape(len(vectors), width))


def similarity_features(vectors: Matrix, near: Closeness) -> Any:
    """Array (passages, SIMILARITY_FEATURES)."""
    import numpy as np

    size = len(vectors)
    out = np.zeros((size, len(SIMILARITY_FEATURES)))
    if size < 2 or near.similarities.shape[1] == 0:
        return out
    sims, rows = near.similarities, near.rows
    out[:, 0] = sims.mean(axis=1)
    out[:, 1] = sims[:, :5].mean(axis=1)
    earlier = rows < np.arange(size)[:, None]
    out[:, 2] = np.where(earlier, sims, 0).max(axis=1)
    out[:-1, 3] = (vectors[:-1] * vectors[1:]).sum(axis=1)
    return out


def predict_reuse(
    passages: Sequence[Passage],
    vectors: Matrix | None = None,
    near: Closeness | None = None,
    space: str = "",
    words: Incidence | None = None,
) -> Any:
    """Expected later uses of each passage, in the scale of the training data, never below 0.02.

    Without vectors the lexical weights are used. `space` is the name of the vectors' embedder: in the space
    that the weights were made in, the direction of a vector counts too. `words`: those of the passages, where
    they were counted before. Cost: about 20 µs a passage, plus FAISS.
    """
    import numpy as np

    if not passages:
        return np.zeros(0)
    features = lexical_features(passages, words)
    if vectors is None:
        return np.maximum(apply(REUSE_LEXICAL, features), _FLOOR)
    near = near or closeness(vectors)
    values = apply(REUSE, np.hstack([features, similarity_features(vectors, near)]))
    if space and space == DIRECTION.space:
        values = values + vectors @ np.array(DIRECTION.weights) + DIRECTION.offset
    return np.maximum(values, _FLOOR)


def apply(weights: Weights, features: Any) -> Any:
    """The linear model: standardise, weigh, add the intercept. Features beyond 4 deviations are cut to 4."""
    import numpy as np

    scaled = (features - np.array(weights.mean)) / np.array(weights.scale)
    return np.clip(scaled, -4, 4) @ np.array(weights.coefficients) + weights.intercept
