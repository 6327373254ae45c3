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
from collections.abc import Callable, Sequence
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
from agentrm.context.relevance import LEXICAL_FEATURES as LEXICAL_RELEVANCE
from agentrm.context.relevance import Relevance
from agentrm.context.reuse_weights import Weights
from agentrm.context.similarity import VectorCache
from agentrm.evaluation.datasets import Conversation, read_conversations

_RIDGE = 50.0
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


def fit(samples: Sequence[Sample]) -> dict[str, Weights]:
    """All four models from the given conversations."""
    uses = np.concatenate([s.uses for s in samples])
    reuse = ridge(np.vstack([s.features for s in samples]), uses)
    reuse_lexical = ridge(np.vstack([s.lexical for s in samples]), uses)
    full = _relevance_rows(samples, lambda s: np.maximum(apply(reuse, s.features), 0.02), True)
    words = _relevance_rows(samples, lambda s: np.maximum(apply(reuse_lexical, s.lexical), 0.02), False)
    return {
        "REUSE": reuse,
        "REUSE_LEXICAL": reuse_lexical,
        "RELEVANCE": logistic(*full),
        "RELEVANCE_LEXICAL": logistic(*words),
    }


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


def judge(sample: Sample, weights: dict[str, Weights]) -> dict[str, list[float]]:
    """Evidence kept by plain greedy selection, per question:

    what the weights are worth before compaction's own costs.
    """
    out: dict[str, list[float]] = {}
    total = sample.cost.sum()
    for name, features in (("REUSE", sample.features), ("REUSE_LEXICAL", sample.lexical)):
        value = np.maximum(apply(weights[name], features), 0.02) / sample.cost
        for budget in (0.1, 0.25, 0.5):
            kept = _greedy(value, sample.cost, budget * total)
            out[f"{name} {budget}"] = [float(np.mean([e in kept for e in ev])) for _, ev in sample.questions]
    for name, similarity in (("RELEVANCE", True), ("RELEVANCE_LEXICAL", False)):
        features = sample.features if similarity else sample.lexical
        reuse = np.maximum(apply(weights["REUSE" if similarity else "REUSE_LEXICAL"], features), 0.02)
        index = Relevance(sample.passages, reuse, sample.vectors if similarity else None)
        for (question, ev), vector in zip(sample.questions, sample.asked, strict=True):
            scores = apply(weights[name], index.features(question, vector if similarity else None))
            for budget in (0.1, 0.25):
                kept = _greedy(scores - 0.5 * np.log(sample.cost), sample.cost, budget * total)
                out.setdefault(f"{name} {budget}", []).append(float(np.mean([e in kept for e in ev])))
    return out


def _greedy(value: Any, cost: Any, budget: float) -> set[int]:
    kept: set[int] = set()
    used = 0.0
    for i in np.argsort(-value):
        if used + cost[i] <= budget:
            kept.add(int(i))
            used += cost[i]
    return kept


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrm.evaluation.train_reuse", description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--format", default="locomo", choices=("locomo", "conversation"))
    parser.add_argument("--vectors", help="SQLite file that keeps embeddings between runs")
    parser.add_argument("--write", action="store_true", help="write agentrm/context/reuse_weights.py")
    options = parser.parse_args(argv)
    conversations = read_conversations(options.dataset, options.format)
    cache = VectorCache(choose_embedder(), options.vectors)
    samples = [Sample(c, cache) for c in conversations]
    found: dict[str, list[float]] = {}
    for out in range(len(samples)):
        weights = fit([s for i, s in enumerate(samples) if i != out])
        for name, values in judge(samples[out], weights).items():
            found.setdefault(name, []).extend(values)
    for name, values in found.items():
        print(f"{name:24} {100 * float(np.mean(values)):5.1f} %  (leave one conversation out)")
    if options.write:
        write(fit(samples), f"{len(samples)} conversations, {sum(len(s.passages) for s in samples)} turns")


def write(models: dict[str, Weights], source: str) -> None:
    path = Path(rw.__file__)
    head = path.read_text().split("\n\nREUSE")[0].rstrip("\n")
    lines = [head, "", "", f"# Fitted on {source}; features in the order of `predict` and `relevance`."]
    for name, w in models.items():
        lines += [f"{name} = Weights("]
        for field in (w.mean, w.scale, w.coefficients):
            lines += ["    (" + ", ".join(repr(v) for v in field) + "),"]
        lines += [f"    {w.intercept!r},", ")"]
    path.write_text("\n".join(lines) + "\n")
    assert len(models["RELEVANCE_LEXICAL"].mean) == len(LEXICAL_RELEVANCE)


if __name__ == "__main__":
    main()
