"""How were the weights in `agentrm.context.reuse_weights` made?

    python -m agentrm.evaluation.train_reuse --dataset locomo.json --format locomo [--write]

Reuse: ridge regression of how often questions cite a turn, on features of the conversation alone.
Relevance: logistic regression of whether a question cites a turn. Both are first judged
leave-one-conversation-out (the figures it prints come from conversations that the weights have not seen),
then fitted on all conversations for `--write`. Repeatable: no random number but a seeded sample of
negatives.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrm.context import reuse_weights as rw
from agentrm.context.embed import choose_embedder
from agentrm.context.passages import pieces_of
from agentrm.context.predict import (
    Closeness,
    Passage,
    apply,
    closeness,
    lexical_features,
    similarity_features,
)
from agentrm.context.relevance import Relevance
from agentrm.context.reuse_weights import Direction, Weights
from agentrm.context.similarity import VectorCache
from agentrm.evaluation.datasets import Conversation, read_conversations

_RIDGE = 50.0
_DIRECTION = 30.0
_LOGIT_PENALTY = 10.0
_NEGATIVES = 150


class Sample:
    """One conversation, ready for training: features, targets and costs of its passages."""

    def __init__(self, conversation: Conversation, cache: VectorCache) -> None:
        self.passages: list[Passage] = [p.passage for p in pieces_of(conversation.messages, whole=10**9)]
        self.vectors = cache.vectors([embedded_text(p) for p in self.passages])
        self.near: Closeness = closeness(self.vectors)
        lexical = lexical_features(self.passages)
        self.features = np.hstack([lexical, similarity_features(self.vectors, self.near)])
        self.lexical = lexical
        row = {m.id: i for i, m in enumerate(m for m in conversation.messages if m.text.strip())}
        self.cost = np.array([max(1.0, len(f"{p.author}: {p.text}") / 4) for p in self.passages])
        self.questions = [
            (q.text, [row[e] for e in q.evidence if e in row]) for q in conversation.questions if q.evidence
        ]
        self.uses = np.zeros(len(self.passages))
        for _, evidence in self.questions:
            for e in evidence:
                self.uses[e] += 1 / len(evidence)
        self.asked = cache.vectors([q for q, _ in self.questions])


def embedded_text(passage: Passage) -> str:
    return f"{passage.author}: {passage.text}"


def ridge(features: Any, target: Any, penalty: float = _RIDGE) -> Weights:
    mean, scale = features.mean(0), features.std(0) + 1e-9
    x = np.clip((features - mean) / scale, -4, 4)
    centre = x.mean(0)
    x = x - centre
    solved = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (target - target.mean()))
    return _weights(mean, scale, solved, float(target.mean() - centre @ solved))


def logistic(features: Any, target: Any, penalty: float = _LOGIT_PENALTY) -> Weights:
    """Newton's method; converges in a few steps on standardised features."""
    mean, scale = features.mean(0), features.std(0) + 1e-9
    x = np.hstack([np.clip((features - mean) / scale, -4, 4), np.ones((len(features), 1))])
    beta = np.zeros(x.shape[1])
    damp = penalty * np.eye(x.shape[1])
    damp[-1, -1] = 0
    for _ in range(30):
        p = 1 / (1 + np.exp(-(x @ beta)))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + damp, x.T @ (target - p) - damp @ beta)
        beta += step
        if np.abs(step).max() < 1e-6:
            break
    return _weights(mean, scale, beta[:-1], float(beta[-1]))


def _weights(mean: Any, scale: Any, coefficients: Any, intercept: float) -> Weights:
    def plain(row: Any) -> tuple[float, ...]:
        return tuple(float(f"{v:.5g}") for v in row)

    return Weights(plain(mean), plain(scale), plain(coefficients), float(f"{intercept:.5g}"))


def direction(
    samples: Sequence[Sample], reuse: Weights, space: str, penalty: float = _DIRECTION
) -> Direction:
    """Ridge regression of what the features leave unexplained on the vectors themselves."""
    vectors = np.vstack([s.vectors for s in samples]).astype(float)
    left = np.concatenate([s.uses - apply(reuse, s.features) for s in samples])
    centre = vectors.mean(0)
    x = vectors - centre
    solved = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ left)
    return Direction(space, tuple(float(f"{v:.4g}") for v in solved), float(f"{-centre @ solved:.5g}"))


def reuse_of(sample: Sample, models: Models) -> Any:
    """The prediction with similarity, as `predict.predict_reuse` makes it."""
    d = models.direction
    return np.maximum(
        apply(models.linear["REUSE"], sample.features) + sample.vectors @ np.array(d.weights) + d.offset, 0.02
    )


@dataclass(frozen=True, slots=True)
class Models:
    linear: dict[str, Weights]
    direction: Direction


def fit(samples: Sequence[Sample], space: str) -> Models:
    """All models from the given conversations."""
    uses = np.concatenate([s.uses for s in samples])
    reuse = ridge(np.vstack([s.features for s in samples]), uses)
    toward = direction(samples, reuse, space)
    partial = Models({"REUSE": reuse}, toward)
    reuse_lexical = ridge(np.vstack([s.lexical for s in samples]), uses)
    full = _relevance_rows(samples, lambda s: reuse_of(s, partial), True)
    words = _relevance_rows(samples, lambda s: np.maximum(apply(reuse_lexical, s.lexical), 0.02), False)
    linear = {
        "REUSE": reuse,
        "REUSE_LEXICAL": reuse_lexical,
        "RELEVANCE": logistic(*full),
        "RELEVANCE_LEXICAL": logistic(*words),
    }
    return Models(linear, toward)


def _relevance_rows(
    samples: Sequence[Sample], reuse: Callable[[Sample], Any], similarity: bool
) -> tuple[Any, Any]:
    rows, targets = [], []
    chance = np.random.default_rng(0)
    for sample in samples:
        index = Relevance(sample.passages, reuse(sample), sample.vectors if similarity else None)
        for (question, evidence), vector in zip(sample.questions, sample.asked, strict=True):
            features = index.features(question, vector if similarity else None)
            target = np.zeros(len(features))
            target[evidence] = 1
            some = chance.choice(len(features), min(len(features), _NEGATIVES), replace=False)
            keep = np.unique(np.concatenate([some, np.array(evidence, dtype=int)]))
            rows.append(features[keep])
            targets.append(target[keep])
    return np.vstack(rows), np.concatenate(targets)


def judge(sample: Sample, models: Models) -> dict[str, list[float]]:
    """Evidence kept by plain greedy selection, per question:

    the weights' worth before compaction's own costs.
    """
    out: dict[str, list[float]] = {}
    total = sample.cost.sum()
    lexical = np.maximum(apply(models.linear["REUSE_LEXICAL"], sample.lexical), 0.02)
    for name, reuse, vectors in (
        ("similarity", reuse_of(sample, models), sample.vectors),
        ("words only", lexical, None),
    ):
        for budget in (0.1, 0.25, 0.5):
            kept = _greedy(reuse / sample.cost, sample.cost, budget * total)
            out[f"blind {name} {budget}"] = [
                float(np.mean([e in kept for e in ev])) for _, ev in sample.questions
            ]
        index = Relevance(sample.passages, reuse, vectors)
        weights = models.linear["RELEVANCE" if vectors is not None else "RELEVANCE_LEXICAL"]
        for (question, ev), vector in zip(sample.questions, sample.asked, strict=True):
            scores = apply(weights, index.features(question, vector if vectors is not None else None))
            for budget in (0.1, 0.25):
                kept = _greedy(scores - 0.5 * np.log(sample.cost), sample.cost, budget * total)
                out.setdefault(f"asked {name} {budget}", []).append(float(np.mean([e in kept for e in ev])))
    return out


def _greedy(value: Any, cost: Any, budget: float) -> set[int]:
    kept: set[int] = set()
    used = 0.0
    for i in np.argsort(-value):
        if used + cost[i] <= budget:
            kept.add(int(i))
            used += cost[i]
    return kept


def unseen(samples: Sequence[Sample], space: str) -> dict[str, float]:
    """What `judge` finds, 0 to 1: mean over the questions of each conversation, with weights fitted on the others."""
    found: dict[str, list[float]] = {}
    for out in range(len(samples)):
        models = fit([s for i, s in enumerate(samples) if i != out], space)
        for name, values in judge(samples[out], models).items():
            found.setdefault(name, []).extend(values)
    return {name: float(np.mean(values)) for name, values in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrm.evaluation.train_reuse", description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--format", default="locomo", choices=("locomo", "conversation"))
    parser.add_argument("--vectors", help="SQLite file that keeps embeddings between runs")
    parser.add_argument("--write", action="store_true", help="write agentrm/context/reuse_weights.py")
    options = parser.parse_args(argv)
    conversations = read_conversations(options.dataset, options.format)
    cache = VectorCache(choose_embedder(), options.vectors)
    space = cache.embedder.name
    samples = [Sample(c, cache) for c in conversations]
    for name, share in unseen(samples, space).items():
        print(f"{name:24} {100 * share:5.1f} %  (leave one conversation out)")
    if options.write:
        write(
            fit(samples, space),
            f"{len(samples)} conversations, {sum(len(s.passages) for s in samples)} turns",
        )


def write(models: Models, source: str) -> None:
    path = Path(rw.__file__)
    head = path.read_text().split("\n# Fitted on")[0].rstrip("\n")
    lines = [
        head,
        "",
        "",
        f"# Fitted on {source}; features in the order of `predict` and `relevance`.",
        "# fmt: off",
    ]
    for name, w in models.linear.items():
        lines += [f"{name} = Weights("]
        for field in (w.mean, w.scale, w.coefficients):
            lines += _tuple(field)
        lines += [f"    {w.intercept!r},", ")"]
    d = models.direction
    lines += ["DIRECTION = Direction(", f'    "{d.space}",', *_tuple(d.weights), f"    {d.offset!r},", ")"]
    path.write_text("\n".join(lines) + "\n")


def _tuple(values: Sequence[float]) -> list[str]:
    body = ", ".join(repr(v) for v in values)
    return ["    (", *(f"        {line}" for line in textwrap.wrap(body, 100)), "    ),"]


if __name__ == "__main__":
    main()
