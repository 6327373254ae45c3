"""Row turn-kv-kept: what the next turn of a conversation costs."""

from __future__ import annotations

from statistics import median
from typing import Any

from agentrm.models import LocalEngine
from benchmarks.local_engine.bench import Bench, Row, ratios_of, spread, text_of, timed


def turn_kv_kept(bench: Bench) -> list[Row]:
    rows = []
    for context, bar, disk_bar in ((1024, 9.0, 6.0), (4096, 25.0, 15.0)):
        if bench.quick and context > 1024:
            continue
        with bench.load(slice_tokens=None) as engine:
            rounds = [one_turn(bench, engine, context) for _ in range(1 if bench.quick else 3)]
        kept, swapped, again = zip(*rounds, strict=True)
        of_kept, of_disk = ratios_of(again, kept), ratios_of(again, swapped)
        rows.append(
            {
                "name": "turn-kv-kept", "context": context, "ratio": median(of_kept), "spread": spread(of_kept),
                "bar": bar, "ratio_disk": median(of_disk), "spread_disk": spread(of_disk), "bar_disk": disk_bar,
                "kept_s": median(kept), "swapped_s": median(swapped), "again_s": median(again),
            }
        )  # fmt: skip
    return rows


def one_turn(bench: Bench, engine: LocalEngine, context: int) -> tuple[float, float, float]:
    """Seconds to the first token: KV kept, saved to disk and read back, all computed again."""
    loop = engine._loops[0]
    prompt, ways = bench.prompt(context), [bench.prompt(64) for _ in range(3)]
    with engine.program() as program:
        _, chain = program.place
        again = timed(first, engine, prompt + ways[0], program)
        loop.ask(lambda: loop.store.truncate(chain, context))
        forget_cached(loop)
        kept = timed(first, engine, prompt + ways[1], program)
        loop.ask(lambda: loop.store.truncate(chain, context))
        saving = timed(loop.ask, lambda: loop.store.save(chain))
        forget_cached(loop)
        swapped = saving + timed(first, engine, prompt + ways[2], program)
    forget_cached(loop)
    return kept, swapped, again


def first(engine: LocalEngine, prompt: str, program: Any) -> None:
    """To the first token."""
    text_of(engine.generate(prompt, max_new_tokens=1, program=program))


def forget_cached(loop: Any) -> None:
    loop.ask(lambda: loop.store.pool.evict(loop.store.pool.capacity))
