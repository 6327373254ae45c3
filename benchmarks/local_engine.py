"""What the local engine gains: `python -m benchmarks.local_engine --json FILE [--device cuda] [--only ROW ...]`

Each row compares in one run, ours and the peer in turn, so that a busy machine slows both down. The ratios are the
figures to read. `--device cuda` runs the same on a GPU (bfloat16 unless `--dtype` says otherwise). With `--report FILE`
nothing runs: results_local_engine.md, a part of RESULTS.md, is written from the files of earlier runs.

    turn-kv-kept           time to the first token of a turn of 64 new tokens, the KV kept (and: swapped to disk and
                           back, saving included), against computing the whole prompt again
    preempted-greedy       tokens that differ between 64 programs run together, with slices, too little memory and
                           swapping, and each alone
    batch-8                tokens per second while 8 programs write, against one at a time; equal and different lengths;
                           against transformers' own batched generate
    contention-16-agents   16 agents, one of them a person: throughput, and the person's 95th percentile, against each
                           agent calling generate on its own thread; against a semaphore; against transformers'
                           batched generate in arrival order
    memory                 the most KV that was ever in use, with half of what the programs need
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import agentrm
from agentrm.models import Generation, LocalEngine

TEXT = (Path(__file__).parent.parent / "LICENSE").read_text() * 8
Row = dict[str, Any]


class Bench:
    """The model, loaded once for ours and once for the peers (whose attention is transformers' own)."""

    def __init__(self, model: str, device: str, dtype: str | None, quick: bool) -> None:
        self.model, self.device, self.dtype, self.quick = model, device, dtype, quick
        loaded = LocalEngine.load(model, device=device, dtype=dtype)._loaded
        words = replace(loaded.tokenizer, end_ids=frozenset())  # every answer gets the length that is asked for
        self.engine = LocalEngine([replace(loaded, tokenizer=words)])
        self._peer: Any = None
        self.tokens = self.engine.tokenizer.encode(TEXT)
        self._at = 0

    def load(self, **options: Any) -> LocalEngine:
        """Another engine over the same weights."""
        return LocalEngine([self.engine._loaded], **options)

    @property
    def peer(self) -> Any:
        if self._peer is None:
            weights: Any = LocalEngine.load(self.model, device=self.device, dtype=self.dtype)._loaded.weights
            weights.set_attn_implementation("sdpa")
            self._peer = weights
        return self._peer

    def prompt(self, length: int) -> str:
        """Text of about that many tokens that was not used before."""
        self._at += 997
        at = self._at % (len(self.tokens) - length - 1)
        return self.engine.tokenizer.decode(self.tokens[at : at + length])

    def generate(self, rows: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """transformers' own batched generate: greedy, exactly `count` tokens each, prompts padded on the left."""
        import torch

        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=self.peer.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=self.peer.device)
        with torch.inference_mode():
            out = self.peer.generate(
                ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
            )  # fmt: skip
        written: list[list[int]] = out[:, longest:].tolist()
        return written


def timed(work: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def text_of(generation: Generation) -> str:
    return "".join(piece.text for piece in generation)


# --- rows ---


def turn_kv_kept(bench: Bench) -> list[Row]:
    rows = []
    for context, bar, disk_bar in ((1024, 9.0, 6.0), (4096, 25.0, 15.0)):
        if bench.quick and context > 1024:
            continue
        kept: list[float] = []
        swapped: list[float] = []
        again: list[float] = []
        with bench.load(slice_tokens=None) as engine:
            for _ in range(1 if bench.quick else 3 if context < 4096 else 2):
                for times, taken in zip((kept, swapped, again), one_turn(bench, engine, context), strict=True):
                    times.append(taken)
        rows.append(
            {
                "name": "turn-kv-kept", "context": context, "ratio": ratio(again, kept), "bar": bar,
                "ratio_disk": ratio(again, swapped), "bar_disk": disk_bar, "kept_s": min(kept),
                "swapped_s": min(swapped), "again_s": min(again),
            }
        )  # fmt: skip
    return rows


def one_turn(bench: Bench, engine: LocalEngine, context: int) -> tuple[float, float, float]:
    """Seconds to the first token: KV kept, saved to disk and read back, all computed again."""
    loop = engine._loops[0]
    prompt, more, other = bench.prompt(context), bench.prompt(64), bench.prompt(64)
    with engine.program() as program:
        first(engine, prompt, program)
        kept = timed(first, engine, prompt + more, program)
        _, chain = program.place
        loop.ask(lambda: loop.store.truncate(chain, context))
        saving = timed(loop.ask, lambda: loop.store.save(chain))
        forget_cached(loop)
        swapped = saving + timed(first, engine, prompt + other, program)
    forget_cached(loop)
    again = timed(first, engine, prompt + more, None)
    forget_cached(loop)
    return kept, swapped, again


def first(engine: LocalEngine, prompt: str, program: Any) -> None:
    """To the first token."""
    text_of(engine.generate(prompt, max_new_tokens=1, program=program))


def forget_cached(loop: Any) -> None:
    loop.ask(lambda: loop.store.pool.evict(loop.store.pool.capacity))


def ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """Best of each: what a neighbour's load added is left out of both."""
    return round(min(peer) / min(ours), 2)


def preempted_greedy(bench: Bench) -> list[Row]:
    programs, count = (8, 8) if bench.quick else (64, 12)
    asked = [bench.prompt(40 + 7 * (i % 9)) for i in range(programs)]
    with bench.load(lanes=1) as engine:
        alone = [text_of(engine.generate(ask, max_new_tokens=count)) for ask in asked]
        block = engine.statistics()[0].block_bytes
    with bench.load(lanes=8, slice_tokens=6, memory=24 * block) as engine:
        with ThreadPoolExecutor(programs) as threads:
            together = list(threads.map(text_of, [engine.generate(ask, max_new_tokens=count) for ask in asked]))
        seen = engine.statistics()[0]
    return [
        {
            "name": "preempted-greedy", "programs": programs, "dtype": bench.engine.dtype, "bar": 0,
            "mismatches": sum(a != b for a, b in zip(alone, together, strict=True)), "switches": seen.switches,
            "swapped_in": seen.swapped_in,
        }
    ]  # fmt: skip


def batch_8(bench: Bench) -> list[Row]:
    count = 8 if bench.quick else 24
    rows = []
    for kind, lengths, bar in (
        ("equal", [256] * 8, 4.0), ("different", [60, 120, 180, 256, 300, 360, 420, 480], 2.5)
    ):  # fmt: skip
        prompts = [bench.prompt(length // (4 if bench.quick else 1)) for length in lengths]
        with bench.load(lanes=8, slice_tokens=None) as engine:
            together, one, theirs = [], [], []
            for _ in range(1 if bench.quick else 2):
                together.append(decode_s(engine, prompts, count, 8))
                one.append(decode_s(engine, prompts, count, 1))
                ids = [engine.tokenizer.encode(prompt) for prompt in prompts]
                ids = [row[: min(map(len, ids))] for row in ids] if kind == "equal" else ids
                short = timed(bench.generate, ids, 1)
                theirs.append(timed(bench.generate, ids, count + 1) - short)
        rows.append(
            {
                "name": "batch-8", "lengths": kind, "ratio": ratio(one, together), "bar": bar,
                "ratio_transformers": ratio(theirs, together), "bar_transformers": 0.85 if kind == "equal" else None,
                "tokens_per_s": round(8 * count / min(together), 1),
            }
        )  # fmt: skip
    return rows


def decode_s(engine: LocalEngine, prompts: Sequence[str], count: int, at_once: int) -> float:
    """Seconds in which each prompt gets `count` tokens after its first one, so many of them at once."""
    engine_loop = engine._loops[0]
    taken = 0.0
    for at in range(0, len(prompts), at_once):
        generations = [engine.generate(prompt, max_new_tokens=count + 1) for prompt in prompts[at : at + at_once]]
        engine_loop.ask(lambda generations=generations: [one._begin() for one in generations])  # type: ignore[misc]
        for one in generations:
            next(one)
        start = time.perf_counter()
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(text_of, generations))
        taken += time.perf_counter() - start
    return taken


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


def memory(bench: Bench) -> list[Row]:
    programs, count = (4, 4) if bench.quick else (12, 16)
    prompts = [bench.prompt(150 + 20 * (i % 5)) for i in range(programs)]
    with bench.load(lanes=8) as engine:
        block = engine.statistics()[0].block_bytes
        needed = sum(-(-(engine.count_tokens(prompt) + count) // 32) for prompt in prompts) * block
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
    finished = sum(one[-1].usage is not None and one[-1].usage.finish_reason != "cancelled" for one in pieces)
    return [
        {
            "name": "memory", "needed": needed, "limit": needed // 2, "peak": seen.peak_blocks * block, "arena": arena,
            "programs": programs, "finished": finished, "swapped_out": seen.swapped_out,
        }
    ]  # fmt: skip


ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "turn-kv-kept": turn_kv_kept,
    "preempted-greedy": preempted_greedy,
    "batch-8": batch_8,
    "contention-16-agents": contention,
    "memory": memory,
}


INTRO = """## Local engine

`python -m benchmarks.local_engine --report FILE ...` wrote this section from runs of `python -m benchmarks.local_engine
--json FILE`; a ratio is peer over ours in one run, so larger is better, and for `p95_ratio` ours over the peer's, so
smaller is. `bar` is what must be reached. A GPU's figures: the same command with `--device cuda`. What transformers
needs for equal lengths is a difference of two noisy times: no more than a hint.
"""


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)


def report(files: Sequence[Path]) -> None:
    """Writes the section from what the files have, newest last; what no run has measured it says."""
    runs = [json.loads(path.read_text()) for path in files]
    lines = [INTRO]
    for kind in ("cpu", "cuda"):
        of_kind = [run for run in runs if run["device"].startswith(kind)]
        for run in of_kind:
            card = run["card"] or f"{run['threads']} thread(s), {run['load']:.0f} programs running on the machine"
            lines.append(f"\n### {run['model']}, {run['dtype']}, {run['device']} ({card})\n")
            command = re.sub(r"--json \S+", "--json FILE", run["command"])
            lines.append(f"torch {run['torch']}, transformers {run['transformers']}; `{command}`\n")
            lines += ["| row | figures |", "|---|---|"]
            for row in run["results"]:
                figures = ", ".join(f"{key} {_short(value)}" for key, value in row.items() if key != "name")
                lines.append(f"| {row['name']} | {figures} |")
        measured = {row["name"] for run in of_kind for row in run["results"]}
        missing = [name for name in ROWS if name not in measured]
        if missing:
            where = "On a CPU" if kind == "cpu" else "On a GPU"
            lines.append(f"\n{where} not measured: {', '.join(missing)}.")
    (Path(__file__).parent / "results_local_engine.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_engine", description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--report", type=Path, nargs="+", help="files of earlier runs")
    args = parser.parse_args()
    if args.report:
        report(args.report)
        return 0
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    bench = Bench(args.model, args.device, args.dtype, args.quick)
    card = torch.cuda.get_device_name(torch.device(args.device)) if args.device.startswith("cuda") else None
    results: list[Row] = []
    doc = {
        "command": "python -m benchmarks.local_engine " + " ".join(sys.argv[1:]), "model": args.model,
        "device": bench.engine.device, "card": card, "dtype": bench.engine.dtype, "threads": args.threads,
        "load": os.getloadavg()[0], "torch": torch.__version__, "transformers": transformers.__version__,
        "results": results,
    }  # fmt: skip
    for name in args.only:
        for row in ROWS[name](bench):
            results.append(row)
            print(json.dumps(row), flush=True)
            if args.json:
                args.json.write_text(json.dumps(doc, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
