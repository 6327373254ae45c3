"""What do the methods keep of the paper's synthetic sessions, at what utilisation and cost?

Rules. *Utilisation*: mean over messages of tokens in the window / window. *Retention*: share of key
sentences that stand word for word in the context at the end. *Quality*: mean over key sentences of 1 in a
message, 0.95 in notes, 0 when gone (the paper states no rule of its own). *Cost*: tokens read and written
by a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentrm.context.compact import Compactor
from agentrm.context.messages import Message
from agentrm.context.similarity import VectorCache
from agentrm.evaluation.plain_counter import PlainCounter, wire_text
from agentrm.evaluation.synthetic import SESSION_KINDS, WINDOW, SessionKind, generate

HIGH, LOW = 0.68, 0.55


@dataclass(frozen=True, slots=True)
class Row:
    """Shares are 0 to 1;

    `paper` is the paper's row for the same session and method, in percent, None without one.
    """

    session: str
    method: str
    utilisation: float
    retention: float
    retention_foreign: float
    quality: float
    cost_tokens: int
    paper: tuple[float, float, float, int] | None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


Step = Callable[[list[Message]], list[Message]]


def evaluate(
    methods: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    cache: VectorCache | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Rows per session kind and method, means over seeds.

    Methods: none, fifo, sliding, agentrm, agentrm-no-faiss. `progress` is told what comes next.
    """
    tell = progress or (lambda text: None)
    return [_row(kind, method, seeds, cache, tell) for kind in SESSION_KINDS for method in methods]


def _row(
    kind: SessionKind, method: str, seeds: Sequence[int], cache: VectorCache | None, tell: Callable[[str], None]
) -> Row:
    used = kept = foreign_kept = foreign = quality = 0.0
    cost = 0
    for seed in seeds:
        tell(f"{kind.name}, seed {seed}: {method}")
        session = generate(kind, seed)
        step, spent = _step(method, cache)
        context: list[Message] = []
        total = 0.0
        for message in session.messages:
            context = step([*context, message])
            total += min(1.0, _size(context) / WINDOW)
        used += total / len(session.messages)
        whole = "\n".join(wire_text(m) for m in context if not m.is_summary)
        notes = "\n".join(m.text for m in context if m.is_summary)
        for key, sentence in session.keys.items():
            score = 1.0 if sentence in whole else 0.95 if sentence in notes else 0.0
            quality += score / len(session.keys)
            kept += (score > 0) / len(session.keys)
            if key in session.foreign:
                foreign += 1
                foreign_kept += score > 0
        cost += spent()
    n = len(seeds)
    return Row(
        kind.name,
        method,
        used / n,
        kept / n,
        foreign_kept / max(1, foreign),
        quality / n,
        cost // n,
        kind.paper.get(method),
    )


def _size(messages: Sequence[Message]) -> float:
    return sum(map(_characters, messages)) / 4


@lru_cache(maxsize=4096)
def _characters(message: Message) -> int:
    return len(wire_text(message))


def _step(method: str, cache: VectorCache | None) -> tuple[Step, Callable[[], int]]:
    if method == "none":
        return _hard_cap, lambda: 0
    if method == "fifo":
        return _fifo, lambda: 0
    if method == "sliding":
        return lambda context: context[-40:], lambda: 0
    if method in ("agentrm", "agentrm-no-faiss"):
        compactor = Compactor(PlainCounter(), embedder=None, vectors=cache if method == "agentrm" else None)
        cost = [0]

        def step(context: list[Message]) -> list[Message]:
            if _size(context) <= HIGH * WINDOW:
                return context
            result = compactor.compact(context, int(LOW * WINDOW))
            cost[0] += result.cost_tokens
            return list(result.messages)

        return step, lambda: cost[0]
    raise LookupError(f"method {method!r} is unknown for the synthetic sessions")


def _hard_cap(context: list[Message]) -> list[Message]:
    """The window is full: the oldest message falls out."""
    while _size(context) > WINDOW:
        context = context[1:]
    return context


def _fifo(context: list[Message]) -> list[Message]:
    """At 90 % of the window the oldest go, down to 80 %."""
    if _size(context) > 0.9 * WINDOW:
        while _size(context) > 0.8 * WINDOW:
            context = context[1:]
    return context
