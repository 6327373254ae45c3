"""What is each group of a history worth to the next requests, and which of its passages?

Chat is judged passage by passage: by predicted reuse, or, when the request is known, by relevance to it.
Steps with tools are judged whole: how lately, whether later calls use what they brought up, whether they
hold an error, and how near they are to what the agent works on now. Both are in expected uses, so that they
compete for the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.digest import Line
from agentrm.context.groups import Group
from agentrm.context.incidence import Incidence, Unsaid, WordNumbers
from agentrm.context.keyinfo import Fact, is_of_kind
from agentrm.context.messages import Message
from agentrm.context.passages import Piece, pieces_of
from agentrm.context.phrasing import fresh_share
from agentrm.context.predict import Closeness, Passage, closeness, predict_reuse
from agentrm.context.relevance import Relevance
from agentrm.context.similarity import VectorCache
from agentrm.context.wordstats import words_of

_HALF_LIFE = 12.0  # steps after which a tool step's recency has halved
_STEP = 0.3  # expected uses of a tool step just done
_TOOL_TEXT = 400  # characters of a tool step that are embedded: its reason and the head of its result
_KEY_KINDS = ("instruction", "decision", "correction")
_KEY_BONUS = 0.1
_DIGITS = 0.3  # a number among words says less than a word: it is kept as a fact


@dataclass(frozen=True, slots=True)
class Candidate:
    """One passage (or tool step) of `group`, by index;

    `value` in expected uses. `whole`: it is all of its group.
    """

    group: int
    message: Message
    text: str
    value: float
    whole: bool
    states_rule: bool = False


@dataclass(frozen=True, slots=True)
class Worth:
    candidates: list[Candidate]
    near: Closeness | None  # rows are candidates
    unsaid: Unsaid | None = None


class Index:
    """The passages of one history with what judging them needs; made once, asked for any request."""

    def __init__(
        self, groups: Sequence[Group], cache: VectorCache | None, lines: Sequence[Line] = ()
    ) -> None:
        """`lines` are what earlier notes kept of messages that are gone: they are judged anew beside the
        rest,

        as groups -1, -2, ...
        """
        self.groups, self.cache, self.lines = groups, cache, lines
        self.owners: list[tuple[int, Message, bool]] = []
        self.passages: list[Passage] = []
        novelty: list[float] = []
        numbers, words = WordNumbers(), list[list[int]]()
        chat = [(i, g.messages[0]) for i, g in enumerate(groups) if g.kind != "tools"]
        pieces: dict[int, list[Piece]] = {}
        kept = [Passage(line.text, line.role) for line in lines]
        cut = pieces_of([m for _, m in chat], kept, numbers=numbers)  # all at once: a pause is seen between groups
        for piece in cut:
            if piece.message >= 0:
                pieces.setdefault(chat[piece.message][0], []).append(piece)
                continue
            line = lines[-1 - piece.message]
            role = line.role if line.role in ("user", "assistant", "system") else "assistant"
            self.owners.append((piece.message, Message(line.source, role), False))
            self.passages.append(piece.passage)
            novelty.append(piece.novelty)
            words.append(piece.words)
        for index, group in enumerate(groups):
            first = group.messages[0]
            if group.kind == "tools":
                self.owners.append((index, first, True))
                self.passages.append(Passage(_step_text(group), first.name or "assistant"))
                novelty.append(1.0)
                words.append(numbers.of(words_of(self.passages[-1].text)))
            for piece in pieces.get(index, ()):
                self.owners.append((index, first, piece.whole))
                self.passages.append(piece.passage)
                novelty.append(piece.novelty)
                words.append(piece.words)
        self.vectors: Any = None
        self.near: Closeness | None = None
        if cache is not None and self.passages:
            self.vectors = cache.vectors([f"{p.author}: {p.text}" for p in self.passages])
            self.near = closeness(self.vectors)
        space = cache.embedder.name if cache is not None else ""
        incidence = Incidence(words, numbers)
        self.reuse = predict_reuse(self.passages, self.vectors, self.near, space, incidence)
        self.fresh = fresh_share(novelty)
        self.unsaid = Unsaid(incidence, _DIGITS)
        self.rules = [is_of_kind(p.text, *_KEY_KINDS) for p in self.passages]
        self._relevance: Relevance | None = None

    def worth(self, facts: Callable[[Message], Sequence[Fact]], query: str | None, goal: str) -> Worth:
        """The candidates with their values, in order.

        `goal` is what the agent works on, where no query is known.
        """
        if not self.passages:
            return Worth([], None)
        aim = (
            self.cache.vectors([query if query is not None else goal])[0] if self.cache is not None else None
        )
        if query is not None:
            if self._relevance is None:
                self._relevance = Relevance(self.passages, self.reuse, self.vectors)
            values = _probability(self._relevance.scores(query, aim))
        else:
            values = _with_steps(
                self.reuse * self.fresh, self.owners, self.groups, self.passages, self.rules, facts, self.vectors, aim
            )
        out = [
            Candidate(group, message, passage.text, self._line_value(group, float(value)), whole, rule)
            for (group, message, whole), passage, value, rule in zip(
                self.owners, self.passages, values, self.rules, strict=True
            )
        ]
        return Worth(out, self.near, self.unsaid)

    def _line_value(self, group: int, value: float) -> float:
        """A line that was worth keeping is not lost because the history around it became plainer."""
        return value if group >= 0 else max(value, self.lines[-1 - group].value)


def _step_text(group: Group) -> str:
    first, *rest = group.messages
    calls = " ".join(f"{c.name} {c.arguments}" for c in first.calls)
    return f"{first.text} {calls} {' '.join(m.text[:_TOOL_TEXT] for m in rest)}"[: 3 * _TOOL_TEXT]


def _probability(log_odds: Any) -> Any:
    import numpy as np

    return 1 / (1 + np.exp(-np.clip(log_odds, -30, 30)))


def _with_steps(
    values: Any,
    owners: Sequence[tuple[int, Message, bool]],
    groups: Sequence[Group],
    passages: Sequence[Passage],
    rules: Sequence[bool],
    facts: Callable[[Message], Sequence[Fact]],
    vectors: Any,
    aim: Any,
) -> Any:
    """Values where tool steps have their own rule and passages that state a rule or a decision a bonus."""
    values = values.copy()
    later_uses: set[str] = set()
    age = 0
    for row in range(len(owners) - 1, -1, -1):
        index, _, _ = owners[row]
        text = passages[row].text
        if index < 0 or groups[index].kind != "tools":
            if rules[row]:
                values[row] += _KEY_BONUS * min(1.0, float(values[row]) + 0.2)
            continue
        group = groups[index]
        own = [f for m in group.messages for f in facts(m)]
        used_later = sum(f.value in later_uses for f in own if not f.used)
        later_uses.update(f.value for f in own if f.used)
        near = max(0.0, float(vectors[row] @ aim)) if vectors is not None else 0.0
        value = _STEP * 0.5 ** (age / _HALF_LIFE) + 0.05 * min(4, used_later) + 0.2 * near
        if is_of_kind(text, "error"):
            value += 0.05
        values[row] = value
        age += 1
    return values
