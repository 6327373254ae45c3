"""Rows preempted-greedy and memory: nothing changes what is written, nothing exceeds the limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from agentrm.models import Generation, LocalEngine
from benchmarks.local_engine.bench import Bench, Row, checked, text_of


def preempted_greedy(bench: Bench) -> list[Row]:
    small = Bench("tiny-random", bench.device, bench.engine.dtype, bench.quick)
    return [one_model(small, 16 if bench.quick else 64, 16), one_model(bench, 6 if bench.quick else 24, 12)]


def one_model(bench: Bench, programs: int, count: int) -> Row:
    asked = [bench.prompt(40 + 7 * (i % 9)) for i in range(programs)]
    with bench.load(lanes=1) as engine:
        alone = [text_of(engine.generate(ask, max_new_tokens=count)) for ask in asked]
        block = engine.statistics()[0].block_bytes
    lanes = min(8, programs // 2) if bench.engine.dtype == "float32" else 1
    with bench.load(lanes=lanes, slice_tokens=3, memory=3 * lanes * block, swap="disk") as engine:
        with ThreadPoolExecutor(programs) as threads:
            together = list(threads.map(lambda i: interrupted(engine, asked[i], count, i), range(programs)))
        seen = engine.statistics()[0]
    wrong = sum(a != b for a, b in zip(alone, together, strict=True))
    row: Row = {
        "name": "preempted-greedy", "model": bench.model, "dtype": bench.engine.dtype, "programs": programs,
        "lanes": lanes, "bar": 0, "mismatches": wrong, "switches": seen.switches, "swapped_in": seen.swapped_in,
        "snapshots": 2 * (programs // 3),
    }  # fmt: skip
    row = checked(row, wrong == 0, "answers differ")
    return checked(row, seen.switches > 0 and seen.swapped_in > 0, "nobody was preempted, or nobody swapped")


def interrupted(engine: LocalEngine, ask: str, count: int, number: int) -> str:
    """One program's answer. Of three programs one is left alone, one frozen with its KV, one as text, in the middle of
    its answer, and all of these resumed."""
    generation = engine.generate(ask, max_new_tokens=count)
    if number % 3 == 0:
        return text_of(generation)
    shown = "".join(next(generation).text for _ in range(2))
    generation.pause()
    snapshot = generation.snapshot(kv=number % 3 == 1)
    shown += "".join(_already_there(generation))
    if snapshot is None:
        return shown
    generation.close()
    resumed = engine.resume(snapshot)
    assert isinstance(resumed, Generation)
    return shown + text_of(resumed)


def _already_there(generation: Generation) -> list[str]:
    """What it had shown when it was frozen, and what is not read yet."""
    return [next(generation).text for _ in range(generation._came.qsize())]


def memory(bench: Bench) -> list[Row]:
    programs, count = (4, 4) if bench.quick else (12, 16)
    prompts = [bench.prompt(150 + 20 * (i % 5)) for i in range(programs)]
    with bench.load(lanes=8) as engine:
        block = engine.statistics()[0].block_bytes
        needed = sum(blocks_for(engine, prompt, count) for prompt in prompts) * block
    with bench.load(lanes=8, memory=needed // 2, slice_tokens=4) as engine:
        held = [engine.program() for _ in prompts]
        with ThreadPoolExecutor(programs) as threads:
            generations = [
                engine.generate(prompt, max_new_tokens=count, program=program)
                for prompt, program in zip(prompts, held, strict=True)
            ]
            pieces = list(threads.map(list, generations))
        seen = engine.statistics()[0]
        arena = engine._loops[0].store.arena.data.nbytes
    usages = [one[-1].usage for one in pieces]
    finished = sum(usage is not None and usage.output_tokens == count for usage in usages)
    row: Row = {
        "name": "memory", "needed": needed, "limit": needed // 2, "peak": seen.peak_blocks * block, "arena": arena,
        "programs": programs, "finished": finished, "swapped_out": seen.swapped_out, "switches": seen.switches,
    }  # fmt: skip
    row = checked(row, max(row["peak"], arena) <= row["limit"], "more than the limit was in use")
    return [checked(row, finished == programs, "not all programs finished")]


def blocks_for(engine: LocalEngine, prompt: str, count: int) -> int:
    return -(-(engine.count_tokens(prompt) + count) // 32)
