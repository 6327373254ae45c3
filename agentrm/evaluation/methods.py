"""Which ways to make a conversation smaller are compared, and what does each keep?

A method gets the messages, a budget in tokens (characters / 4) and, where it can use one, the question. It
gives back message ids and, where it writes text of its own, that text. Simple methods are the ones that the
published figures were made with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.compact import Compactor
from agentrm.context.messages import Message
from agentrm.context.similarity import VectorCache
from agentrm.context.wordstats import BM25, words_of
from agentrm.evaluation.datasets import Conversation, Question
from agentrm.evaluation.plain_counter import PlainCounter, wire_text


@dataclass(frozen=True, slots=True)
class Kept:
    """Ids of messages that stand in the context byte for byte, and other text in it."""

    ids: frozenset[str]
    text: str = ""
    extra_tokens: float = 0.0


class Bench:
    """One conversation with what methods share: costs, word lists, vectors."""

    def __init__(self, conversation: Conversation, cache: VectorCache | None) -> None:
        self.conversation = conversation
        self.messages = conversation.messages
        self.cost = [len(wire_text(m)) / 4 for m in self.messages]
        self.total = sum(self.cost)
        self.words = [words_of(wire_text(m)) for m in self.messages]
        self._cache = cache
        self._bm25: BM25 | None = None
        self._vectors: Any = None
        self.compactors: dict[str, Compactor] = {}

    @property
    def bm25(self) -> BM25:
        if self._bm25 is None:
            self._bm25 = BM25(self.words)
        return self._bm25

    @property
    def cache(self) -> VectorCache:
        if self._cache is None:
            raise LookupError("this method needs embeddings; pip install 'agentrm[semantic]'")
        return self._cache

    @property
    def vectors(self) -> Any:
        if self._vectors is None:
            self._vectors = self.cache.vectors([wire_text(m) for m in self.messages])
        return self._vectors

    def fill(self, order: Sequence[int], budget: float, *, stop: bool = False) -> Kept:
        """Takes messages in the order given while they fit; `stop` ends at the first that does not."""
        ids: set[str] = set()
        used = 0.0
        for i in order:
            if self.messages[i].id in ids:
                continue
            if used + self.cost[i] <= budget:
                ids.add(self.messages[i].id)
                used += self.cost[i]
            elif stop:
                break
        return Kept(frozenset(ids))


Method = Callable[[Bench, float, "Question | None"], Kept]


def _none(bench: Bench, budget: float, question: Question | None) -> Kept:
    return Kept(frozenset(m.id for m in bench.messages))


def _keep_last(bench: Bench, budget: float, question: Question | None) -> Kept:
    return bench.fill(range(len(bench.messages) - 1, -1, -1), budget, stop=True)


def _first_last(bench: Bench, budget: float, question: Question | None) -> Kept:
    """A tenth of the budget for the beginning, the rest for the end."""
    first = bench.fill(range(len(bench.messages)), 0.1 * budget, stop=True)
    used = sum(c for c, m in zip(bench.cost, bench.messages, strict=True) if m.id in first.ids)
    last = bench.fill(range(len(bench.messages) - 1, -1, -1), budget - used, stop=True)
    return Kept(first.ids | last.ids)


def _idf(bench: Bench, budget: float, question: Question | None) -> Kept:
    """Most rare words per token first."""
    count: dict[str, int] = {}
    for words in bench.words:
        for word in set(words):
            count[word] = count.get(word, 0) + 1
    size = len(bench.messages)
    mass = [sum(math.log(size / count[w]) for w in set(words)) for words in bench.words]
    order = sorted(range(size), key=lambda i: -mass[i] / max(0.25, bench.cost[i]))
    return bench.fill(order, budget)


def _bm25_order(bench: Bench, question: Question) -> list[int]:
    scores = bench.bm25.scores(words_of(question.text))
    return [i for i in sorted(range(len(scores)), key=lambda i: -scores[i]) if scores[i] > 0]


def _bm25(bench: Bench, budget: float, question: Question | None) -> Kept:
    assert question is not None
    return bench.fill(_bm25_order(bench, question), budget)


def _bm25_neighbours(bench: Bench, budget: float, question: Question | None) -> Kept:
    """Each hit with the message before and behind it."""
    assert question is not None
    order = [
        j for i in _bm25_order(bench, question) for j in (i, i - 1, i + 1) if 0 <= j < len(bench.messages)
    ]
    return bench.fill(list(dict.fromkeys(order)), budget)


def _dense(bench: Bench, budget: float, question: Question | None) -> Kept:
    assert question is not None
    scores = bench.vectors @ bench.cache.vectors([question.text])[0]
    return bench.fill([int(i) for i in (-scores).argsort(kind="stable")], budget)


def _langchain_trim(bench: Bench, budget: float, question: Question | None) -> Kept:
    """LangChain's own `trim_messages(strategy="last")`."""
    from langchain_core.messages import trim_messages

    from agentrm.context.convert_langchain import to_langchain

    def count(messages: Any) -> int:
        return math.ceil(
            sum(len(f"{m.name}: {m.content}" if m.name else str(m.content)) for m in messages) / 4
        )

    kept = trim_messages(
        to_langchain(bench.messages), max_tokens=int(budget), token_counter=count, strategy="last"
    )
    return Kept(frozenset(str(m.id) for m in kept))


def _memgpt(bench: Bench, budget: float, question: Question | None) -> Kept:
    """The newest messages and a running summary of the rest in a tenth of the budget: first sentences,
    newest first.

    A stand-in without a model; what the summary keeps of a turn counts only if it is the whole turn.
    """
    kept = bench.fill(range(len(bench.messages) - 1, -1, -1), 0.9 * budget, stop=True)
    room = 0.1 * budget
    lines: list[str] = []
    for message in reversed(bench.messages):
        if message.id in kept.ids:
            continue
        line = message.text.split(". ")[0]
        if room < len(line) / 4 + 1:
            break
        room -= len(line) / 4 + 1
        lines.append(line)
    text = "\n".join(lines)
    return Kept(kept.ids, text, len(text) / 4)


def _belady(bench: Bench, budget: float, question: Question | None) -> Kept:
    """The bound:

    knows what will be asked (all questions, or this one) and keeps most cited turns per token.
    """
    uses: dict[str, float] = {}
    for q in bench.conversation.questions if question is None else [question]:
        for e in q.evidence:
            uses[e] = uses.get(e, 0.0) + 1 / len(q.evidence)
    order = sorted(
        range(len(bench.messages)),
        key=lambda i: -uses.get(bench.messages[i].id, 0.0) / max(0.25, bench.cost[i]),
    )
    return bench.fill(order, budget)


def _agentrm(name: str, embeddings: bool) -> Method:
    def method(bench: Bench, budget: float, question: Question | None) -> Kept:
        compactor = bench.compactors.get(name)
        if compactor is None:
            cache = bench.cache if embeddings else None
            compactor = Compactor(PlainCounter(), embedder=None, vectors=cache)
            bench.compactors[name] = compactor
        result = compactor.compact(bench.messages, int(budget), query=question.text if question else None)
        given = {m.id: m for m in bench.messages}
        ids = frozenset(m.id for m in result.messages if given.get(m.id) == m)
        notes = "\n".join(m.text for m in result.messages if m.id not in ids)
        return Kept(ids, notes, len(notes) / 4)

    return method


BLIND: dict[str, Method] = {
    "agentrm": _agentrm("agentrm", True),
    "agentrm-no-faiss": _agentrm("agentrm-no-faiss", False),
    "keep-last": _keep_last,
    "first-last": _first_last,
    "idf": _idf,
    "langchain-trim": _langchain_trim,
    "memgpt": _memgpt,
    "none": _none,
    "belady": _belady,
}
ASKED: dict[str, Method] = {
    "agentrm": BLIND["agentrm"],
    "agentrm-no-faiss": BLIND["agentrm-no-faiss"],
    "bm25": _bm25,
    "bm25-neighbours": _bm25_neighbours,
    "dense": _dense,
    "belady": _belady,
}
METHODS = tuple(dict.fromkeys([*BLIND, *ASKED]))


def texts_of(messages: Sequence[Message], kept: Kept) -> str:
    """Everything a model would read."""
    return "\n".join([wire_text(m) for m in messages if m.id in kept.ids] + [kept.text])
