"""Do sentences that are said once outlast long talk of another kind? A check that nothing was tuned on.

Sentences of LoCoMo's turns that later questions need are put, each into a message of its own, among the talk of
tau-bench runs, one after the other as one session: a customer service whose sentences resemble each other. The window
and its watermarks are those of the paper's sessions (`agentrm.evaluation.synthetic_run`).

    python -m benchmarks.needles --locomo FILE --taubench FILE [--embeddings]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrm.context.compact import Compactor
from agentrm.context.embed import choose_embedder
from agentrm.context.keyinfo import sentences_of
from agentrm.context.messages import Message, Text
from agentrm.context.similarity import VectorCache
from agentrm.evaluation.datasets import read_conversations, read_trajectories
from agentrm.evaluation.plain_counter import PlainCounter, wire_text
from agentrm.evaluation.synthetic import WINDOW
from agentrm.evaluation.synthetic_run import HIGH, LOW

COUNT = 60
SIZES = range(40, 140)  # characters of a sentence


@dataclass(frozen=True, slots=True)
class Found:
    """`kept` of `needles` stand word for word in the context at the end; `tokens` (characters / 4) went through it, of
    which it holds the share `held`."""

    method: str
    tokens: int
    needles: int
    kept: int
    held: float


def sentences(locomo: str | Path) -> list[str]:
    """The statements in the evidence of all questions, none twice."""
    out: dict[str, None] = {}
    for talk in read_conversations(locomo, "locomo"):
        needed = {e for q in talk.questions for e in q.evidence}
        texts = [m.text.split(" [photo:")[0] for m in talk.messages if m.id in needed]
        out |= dict.fromkeys(s for t in texts for s in sentences_of(t) if len(s) in SIZES and s.endswith("."))
    return list(out)


def session(locomo: str | Path, taubench: str | Path, seed: int) -> tuple[list[Message], list[str]]:
    """Messages in order, runs in a random one, and the sentences put among them."""
    chance = random.Random(seed)
    runs = read_trajectories(taubench)
    chance.shuffle(runs)
    messages: list[Message] = []
    for run in runs:
        for message in run.messages:
            if message.role in ("user", "assistant") and message.text.strip():
                messages.append(Message(f"t{len(messages)}", message.role, (Text(message.text),)))
    needles = chance.sample(sentences(locomo), COUNT)
    for needle, at in zip(needles, chance.sample(range(len(messages) - 8), COUNT), strict=True):
        around = sentences_of(messages[at].text)
        around.insert(chance.randrange(len(around) + 1), needle)
        messages[at] = messages[at].with_parts([Text(" ".join(around))])
    return messages, needles


def kept(
    locomo: str | Path, taubench: str | Path, seeds: Sequence[int] = (0, 1, 2), cache: VectorCache | None = None
) -> Found:
    """Sums over the seeds' sessions; embeddings are used where there is a `cache`."""
    tokens = count = held = 0
    for seed in seeds:
        messages, needles = session(locomo, taubench, seed)
        compactor = Compactor(PlainCounter(), embedder=None, vectors=cache)
        context: list[Message] = []
        for message in messages:
            context.append(message)
            tokens += len(wire_text(message)) // 4
            if sum(len(wire_text(m)) for m in context) / 4 > HIGH * WINDOW:
                context = list(compactor.compact(context, int(LOW * WINDOW)).messages)
        shown = "\n".join(wire_text(m) for m in context)
        held += len(shown) // 4
        count += sum(needle in shown for needle in needles)
    name = "agentrm" if cache is not None else "agentrm-no-faiss"
    return Found(name, tokens // len(seeds), COUNT * len(seeds), count, held / tokens)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.needles", description=__doc__)
    parser.add_argument("--locomo", type=Path, required=True, help="LoCoMo's own JSON")
    parser.add_argument("--taubench", type=Path, required=True, help="JSON lines with OpenAI-format messages")
    parser.add_argument("--embeddings", action="store_true", help="the best embedder installed, instead of none")
    options = parser.parse_args()
    cache = VectorCache(choose_embedder()) if options.embeddings else None
    found = kept(options.locomo, options.taubench, cache=cache)
    print(
        f"{found.method}: {found.kept} of {found.needles} sentences kept ({100 * found.kept / found.needles:.1f} %),"
        f" {found.tokens:,} tokens a session, of which the context holds {found.held:.0%}, window {WINDOW:,}"
    )


if __name__ == "__main__":
    main()
