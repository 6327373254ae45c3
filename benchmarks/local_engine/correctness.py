"""Rows preempted-greedy and memory: nothing changes what is written, nothing exceeds the limit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import agentrm
from agentrm.models import Generation, LocalEngine, Piece
from benchmarks.local_engine.bench import Bench, Row, checked, text_of


def preempted_greedy(bench: Bench) -> list[Row]:
    small = Bench("tiny-random", bench.device, bench.engine.dtype, bench.quick)
    if bench.quick:
        return [one_model(small, 16, 16), one_model(bench, 6, 12)]
    return [one_model(bench, 64, 12), one_model(small, 64, 16), one_model(small, 250, 16)]


def one_model(bench: Bench, programs: int, count: int) -> Row:
    asked = [bench.prompt(40 + 7 * (i % 9)) for i in range(programs)]
    with bench.load(lanes=1) as engine:
        alone = [text_of(engine.generate(ask, max_new_tokens=count)) for ask in asked]
        block = engine.statistics()[0].block_bytes
        longest = max(blocks_for(engine, ask, count) for ask in asked)
    lanes = min(8, programs // 2) if bench.engine.dtype == "float32" else 1
    with bench.load(lanes=lanes, slice_tokens=3, memory=max(3 * lanes, longest) * block, swap="disk") as engine:
        crowd = Crowd(engine, asked, count)
        together = crowd.texts()
        seen = engine.statistics()[0]
    wrong = sum(a != b for a, b in zip(alone, together, strict=True))
    row: Row = {
        "name": "preempted-greedy", "model": bench.model, "dtype": bench.engine.dtype, "programs": programs,
        "lanes": lanes, "bar": 0, "mismatches": wrong, "switches": seen.switches, "swapped_in": seen.swapped_in,
        "snapshots": crowd.frozen,
    }  # fmt: skip
    row = checked(row, wrong == 0, "answers differ")
    happened = min(seen.switches, seen.swapped_in, crowd.frozen) > 0
    return checked(row, happened, "nobody was preempted, or swapped, or frozen")


class Crowd:
    """Programs that interrupt each other at the same tokens in every run, whatever the machine does meanwhile.

    All but every eighth begin at once, in the background; the others are persons, one of whom comes at every third
    step. Of three programs one is left alone, one frozen with its KV, one as text, after 2 to 5 tokens, and these are
    resumed in place of what they were.
    """

    def __init__(self, engine: LocalEngine, asked: Sequence[str], count: int) -> None:
        self.engine, self.frozen = engine, 0
        self._loop = engine._loops[0]
        self._shown = [""] * len(asked)
        self._running: list[Generation] = []
        for i, ask in enumerate(asked):
            with agentrm.identity(priority="interactive" if i % 8 == 7 else "background"):
                self._running.append(engine.generate(ask, max_new_tokens=count))
        self._persons = [one for i, one in enumerate(self._running) if i % 8 == 7]
        self._to_freeze = {i for i in range(len(asked)) if i % 3}
        self._steps = 0
        self._settled = threading.Event()
        """All persons are there and all snapshots made: from now on callers may read."""

    def texts(self) -> list[str]:
        """What each has written in the end."""
        loop, run = self._loop, self._loop.forward.run

        def counted(rows: Any, store: Any) -> Any:
            out = run(rows, store)
            loop.post(self._between)
            return out

        loop.forward.run = counted  # type: ignore[method-assign]
        loop.ask(self._begin)
        self._settled.wait()
        return [shown + text_of(one) for shown, one in zip(self._shown, self._running, strict=True)]

    def _begin(self) -> None:
        for i, one in enumerate(self._running):
            if i % 8 != 7:
                one._begin()

    def _between(self) -> None:
        """In the loop's thread, after each step."""
        self._steps += 1
        if self._persons and self._steps % 3 == 0:
            self._persons.pop()._begin()
        for i in sorted(self._to_freeze):
            if self._running[i]._call.written >= 2 + i % 4:
                self._to_freeze.discard(i)
                self._freeze(i)
        if not self._to_freeze and not self._persons:
            self._settled.set()

    def _freeze(self, i: int) -> None:
        before = self._running[i]
        before.pause()
        snapshot = before.snapshot(kv=i % 3 == 1)
        if snapshot is None:  # it has ended
            return
        self._shown[i] = "".join(next(before).text for _ in range(before._came.qsize()))
        before.close()
        resumed = self.engine.resume(snapshot)
        assert isinstance(resumed, Generation)
        resumed._begin()
        self._running[i] = resumed
        self.frozen += 1


def _to_its_end(generation: Generation) -> list[Piece]:
    return list(generation)


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
            pieces = list(threads.map(_to_its_end, generations))
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
