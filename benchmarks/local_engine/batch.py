"""Row batch-8: the time of one token while several programs write together, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any

from agentrm.models import LocalEngine
from benchmarks.local_engine.bench import Bench, Row, ratios_of, spread, text_of

LENGTHS = {"equal": [256] * 8, "different": [60, 120, 180, 256, 300, 360, 420, 480]}


def batch_8(bench: Bench) -> list[Row]:
    rows = []
    for kind, bar, bar_peer in (("equal", 4.0, 0.85), ("different", 2.5, None)):
        lengths = [length // (4 if bench.quick else 1) for length in LENGTHS[kind]]
        prompts = [bench.tokens[i * 997 : i * 997 + length] for i, length in enumerate(lengths)]
        count, rounds = (6, 1) if bench.quick else (16, 3)
        together, one, theirs = [], [], []
        with bench.load(lanes=8, slice_tokens=None) as engine:
            for _ in range(rounds):
                theirs.append(median(steps(bench.generate(prompts, count + 1))))
                together.append(median(step_times(bench, engine, prompts, count)))
                alone = [median(step_times(bench, engine, [prompt], count)) for prompt in prompts]
                one.append(sum(alone) / len(alone))
        gains = [8 * ratio for ratio in ratios_of(one, together)]
        of_peer = ratios_of(theirs, together)
        rows.append(
            {
                "name": "batch-8", "lengths": kind, "ratio": median(gains), "spread": spread(gains), "bar": bar,
                "ratio_transformers": median(of_peer), "spread_transformers": spread(of_peer),
                "bar_transformers": bar_peer, "step_s": median(together), "step_alone_s": median(one),
                "step_transformers_s": median(theirs), "tokens_per_s": 8 / median(together),
            }
        )  # fmt: skip
    return rows


def steps(times: Sequence[float]) -> list[float]:
    """Seconds between two tokens."""
    return [after - before for before, after in pairwise(times)]


def step_times(bench: Bench, engine: LocalEngine, prompts: Sequence[Sequence[int]], count: int) -> list[float]:
    """Seconds of each step in which all of the prompts get a token: from one forward of the engine to the next, all
    between them included. All but the end of the prompts is computed before, in a first turn of each program."""
    loop = engine._loops[0]
    decode = bench.engine.tokenizer.decode
    texts = [decode(prompt) for prompt in prompts]
    programs = [engine.program() for _ in texts]
    for prompt, program in zip(prompts, programs, strict=True):
        text_of(engine.generate(decode(prompt[:-8]), max_new_tokens=1, program=program))
    starts: list[tuple[float, int]] = []
    run = loop.forward.run

    def stamped(rows: Any, store: Any) -> Any:
        starts.append((time.perf_counter(), len(rows)))
        return run(rows, store)

    generations = [
        engine.generate(text, max_new_tokens=count + 1, program=program)
        for text, program in zip(texts, programs, strict=True)
    ]
    def begin() -> None:
        for one in generations:
            one._begin()

    loop.forward.run = stamped  # type: ignore[method-assign]
    try:
        loop.ask(begin)
        with ThreadPoolExecutor(len(generations)) as threads:
            list(threads.map(text_of, generations))
    finally:
        loop.forward.run = run  # type: ignore[method-assign]
        for program in programs:
            program.close()
    full = [at for at, rows in starts if rows == len(prompts)]
    assert len(full) >= count, "the programs did not write together"
    return steps(full)
