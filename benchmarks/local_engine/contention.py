"""Row contention-16-agents: one model, many who want it, one of them a person."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import agentrm
from benchmarks.local_engine.bench import Bench, Row, text_of, timed


def contention(bench: Bench) -> list[Row]:
    """15 background agents write long answers to long prompts, turn after turn; a person asks short questions."""
    seconds_of: dict[str, tuple[float, list[float]]] = {}
    agents, turns, questions = (15, 1, 2) if bench.quick else (15, 1, 3)
    works = [bench.prompt(40 + 6 * i) for i in range(agents * turns)]
    asks = [bench.prompt(24) for _ in range(questions)]
    new, short = (4, 2) if bench.quick else (16, 4)

    def run(name: str, work: Callable[[str, int, bool], Any]) -> None:
        waits: list[float] = []
        started = threading.Barrier(agents + 2)

        def agent(i: int) -> None:
            started.wait()
            for turn in range(turns):
                work(works[i * turns + turn], new, False)

        def person() -> None:
            started.wait()
            time.sleep(1.0)  # the others are at work
            for ask in asks:
                waits.append(timed(work, ask, short, True))

        with ThreadPoolExecutor(agents + 1) as threads:
            done = [threads.submit(agent, i) for i in range(agents)] + [threads.submit(person)]
            started.wait()
            taken = timed(lambda: [one.result() for one in done])
        seconds_of[name] = taken, waits

    with bench.load(lanes=8) as engine:

        def managed(prompt: str, count: int, person: bool) -> None:
            priority: Any = "interactive" if person else "background"
            with agentrm.identity(agent=threading.current_thread().name, priority=priority):
                text_of(engine.generate(prompt, max_new_tokens=count))

        run("agentrm", managed)

    encode = bench.engine.tokenizer.encode

    def alone(prompt: str, count: int, person: bool) -> None:
        bench.generate([encode(prompt)], count)

    run("unmanaged", alone)
    gate = threading.Semaphore(1)

    def gated(prompt: str, count: int, person: bool) -> None:
        with gate:
            alone(prompt, count, person)

    run("semaphore", gated)
    with Arrivals(bench) as arrivals:
        run("transformers batch", arrivals.work)
    ours, waits = seconds_of["agentrm"]
    row: Row = {"name": "contention-16-agents", "agents": agents + 1, "p95_s": round(p95(waits), 3)}
    for name, (taken, other) in seconds_of.items():
        if name != "agentrm":
            key = {"unmanaged": "", "semaphore": "_semaphore", "transformers batch": "_batch"}[name]
            row[f"ratio{key}"] = round(taken / ours, 2)
            row[f"p95_ratio{key}"] = round(p95(waits) / p95(other), 3)
    row |= {"bar": 2.1, "bar_p95": 0.2}
    return [row]


class Arrivals:
    """A peer: transformers' batched generate over what has arrived, up to 8 at a time, in order of arrival."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._waiting: list[tuple[list[int], int, threading.Event]] = []
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def work(self, prompt: str, count: int, person: bool) -> None:
        done = threading.Event()
        with self._changed:
            self._waiting.append((self._bench.engine.tokenizer.encode(prompt), count, done))
            self._changed.notify()
        done.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._over)
                if self._over:
                    return
                batch, self._waiting = self._waiting[:8], self._waiting[8:]
            self._bench.generate([ids for ids, _, _ in batch], max(count for _, count, _ in batch))
            for _, _, done in batch:
                done.set()


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
