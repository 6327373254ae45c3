"""How much of what later questions need is still in the context, by method and budget?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.embed import EmbedderError, choose_embedder
from agentrm.context.similarity import VectorCache
from agentrm.context.wordstats import STOP, words_of
from agentrm.evaluation.datasets import Conversation, Question
from agentrm.evaluation.methods import ASKED, BLIND, Bench, Kept, texts_of


@dataclass(frozen=True, slots=True)
class Row:
    """Shares are 0 to 1.

    `tokens` is the mean share of the conversation that the context has; `seconds` per context.
    """

    method: str
    budget: float
    query_known: bool
    category: str
    questions: int
    evidence: float
    all_evidence: float
    answer_words: float
    tokens: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class _Tally:
    def __init__(self) -> None:
        self.questions = 0
        self.evidence = self.all_evidence = self.answer = self.tokens = self.seconds = 0.0
        self.answered = self.contexts = 0

    def row(self, method: str, budget: float, known: bool, category: str) -> Row:
        n = max(1, self.questions)
        return Row(
            method,
            budget,
            known,
            category,
            self.questions,
            self.evidence / n,
            self.all_evidence / n,
            self.answer / max(1, self.answered),
            self.tokens / max(1, self.contexts),
            self.seconds / max(1, self.contexts),
        )


def evaluate(
    conversations: Sequence[Conversation],
    methods: Sequence[str],
    budgets: Sequence[float],
    *,
    vectors: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Rows for every method, budget, with and without the question where the method can use one, and
    category.

    `vectors` is a file that keeps embeddings between runs. Raises `EmbedderError` when a method needs
    embeddings and there are none.
    """
    needs = {"agentrm", "dense"} & set(methods)
    cache = VectorCache(choose_embedder(), vectors) if needs else None
    tallies: dict[tuple[str, float, bool, str], _Tally] = {}
    for conversation in conversations:
        bench = Bench(conversation, cache)
        if cache is not None:  # embeddings are a cost of adding a message, not of a compaction
            cache.vectors([q.text for q in conversation.questions])
        whole = frozenset(w for m in bench.messages for w in words_of(m.text))
        for method in methods:
            for budget in budgets:
                if method in BLIND:
                    _one(bench, whole, method, budget, False, tallies)
                if method in ASKED:
                    _one(bench, whole, method, budget, True, tallies)
            if progress is not None:
                progress(f"{conversation.id}: {method}")
    return [t.row(*key) for key, t in tallies.items()]


def _one(
    bench: Bench,
    whole: frozenset[str],
    method: str,
    budget: float,
    known: bool,
    tallies: dict[tuple[str, float, bool, str], _Tally],
) -> None:
    kept: Kept | None = None
    words: frozenset[str] = frozenset()
    for question in bench.conversation.questions:
        if not question.evidence:
            continue
        seconds = 0.0
        if kept is None or known:
            started = time.perf_counter()
            run = ASKED[method] if known else BLIND[method]
            kept = run(bench, budget * bench.total, question if known else None)
            seconds = time.perf_counter() - started
            words = frozenset(words_of(texts_of(bench.messages, kept)))
            for category in ("all", question.category) if known else ("all",):
                tally = tallies.setdefault((method, budget, known, category), _Tally())
                tally.contexts += 1
                tally.seconds += seconds
                tally.tokens += _tokens(bench, kept)
        _judge(bench, question, kept, words, whole, method, budget, known, tallies)


def _tokens(bench: Bench, kept: Kept) -> float:
    used = sum(c for c, m in zip(bench.cost, bench.messages, strict=True) if m.id in kept.ids)
    return (used + kept.extra_tokens) / max(1.0, bench.total)


def _judge(
    bench: Bench,
    question: Question,
    kept: Kept,
    words: frozenset[str],
    whole: frozenset[str],
    method: str,
    budget: float,
    known: bool,
    tallies: dict[tuple[str, float, bool, str], _Tally],
) -> None:
    """A turn counts when its text stands in the context, as a message or inside the notes."""
    text_of = {m.id: m.text for m in bench.messages if m.id in question.evidence}
    found = [
        e in kept.ids or (e in text_of and bool(kept.text) and text_of[e] in kept.text)
        for e in question.evidence
    ]
    wanted = {w for w in words_of(question.answer) if w not in STOP} & whole
    for category in ("all", question.category):
        tally = tallies.setdefault((method, budget, known, category), _Tally())
        tally.questions += 1
        tally.evidence += sum(found) / len(found)
        tally.all_evidence += all(found)
        if wanted:
            tally.answered += 1
            tally.answer += len(wanted & words) / len(wanted)


__all__ = ["EmbedderError", "Row", "evaluate"]
