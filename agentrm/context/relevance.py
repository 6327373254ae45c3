"""Which passages does a request need?

For a known request the score joins words (BM25 with short stems), meaning (embedding similarity, FAISS),
both again over a window of neighbours (an answer stands beside its question), who is spoken of, and how
reusable the passage is anyway. The weights of this sum are in `reuse_weights`, learned on conversations
that are not judged with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrm.context.predict import Passage, apply
from agentrm.context.reuse_weights import RELEVANCE, RELEVANCE_LEXICAL
from agentrm.context.wordstats import BM25, STOP, search_terms, words_of

if TYPE_CHECKING:
    from agentrm.context.embed import Matrix

LEXICAL_FEATURES = ("words", "words_window", "author_named", "log_reuse", "log_tokens", "words_rank")
SIMILARITY_FEATURES = ("meaning", "meaning_window", "meaning_rank", "meaning_neighbour")


class Relevance:
    """Scores the passages of one conversation against requests; built once, asked many times."""

    def __init__(self, passages: Sequence[Passage], reuse: Any, vectors: Matrix | None = None) -> None:
        import numpy as np

        terms = [search_terms(f"{p.author} {p.text}") for p in passages]
        self._single = BM25(terms)
        around = [
            [w for j in range(max(0, i - 1), min(len(terms), i + 2)) for w in terms[j]]
            for i in range(len(terms))
        ]
        self._window = BM25(around)
        self._authors = [p.author.lower() for p in passages]
        self._reuse = np.log(np.maximum(reuse, 1e-3))
        self._tokens = np.log(np.array([max(1.0, len(p.text) / 4) for p in passages]) + 1e-9)
        self._vectors = vectors
        if vectors is not None and len(vectors):
            wide = vectors.copy()
            wide[1:] += 0.5 * vectors[:-1]
            wide[:-1] += 0.5 * vectors[1:]
            self._wide = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-9)

    def features(self, query: str, query_vector: Any = None) -> Any:
        """Array (passages, features): lexical ones, then, with a vector, those of similarity."""
        import numpy as np

        terms = search_terms(" ".join(w for w in words_of(query) if w not in STOP))
        single = _share(np.array(self._single.scores(terms)))
        window = _share(np.array(self._window.scores(terms)))
        asked = query.lower()
        named = {a: float(bool(a) and a in asked) for a in set(self._authors)}
        author = np.array([named[a] for a in self._authors])
        rows = [single, window, author, self._reuse, self._tokens, _rank(single)]
        if query_vector is not None and self._vectors is not None:
            meaning = self._vectors @ query_vector
            wide = _standard(self._wide @ query_vector)
            meaning = _standard(meaning)
            beside = np.full(len(meaning), -3.0)
            beside[1:] = meaning[:-1]
            beside[:-1] = np.maximum(beside[:-1], meaning[1:])
            rows += [meaning, wide, _rank(meaning), beside]
        return np.stack(rows, axis=1)

    def scores(self, query: str, query_vector: Any = None) -> Any:
        """Log-odds that the request needs each passage."""
        features = self.features(query, query_vector)
        weights = RELEVANCE if features.shape[1] > len(LEXICAL_FEATURES) else RELEVANCE_LEXICAL
        return apply(weights, features)


def _share(scores: Any) -> Any:
    top = scores.max() if len(scores) else 0.0
    return scores / top if top > 0 else scores


def _standard(scores: Any) -> Any:
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else scores * 0.0


def _rank(scores: Any) -> Any:
    import numpy as np

    order = np.empty(len(scores))
    order[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return 10.0 / (10.0 + order)
