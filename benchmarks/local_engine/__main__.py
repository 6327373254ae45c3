"""The command, and the report that is put together from its files."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import benchmarks.local_engine
from benchmarks.local_engine.batch import batch_8
from benchmarks.local_engine.bench import Bench, Row
from benchmarks.local_engine.contention import contention
from benchmarks.local_engine.correctness import memory, preempted_greedy
from benchmarks.local_engine.turns import turn_kv_kept

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
smaller is. Ratios are medians of the rounds, `spread` the lowest and the highest round; times are seconds. `bar` is
what must be reached. A GPU's figures: the same command with `--device cuda`.
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
    (Path(__file__).parents[1] / "results_local_engine.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.local_engine", description=benchmarks.local_engine.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
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
    return 1 if any("failed" in row for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
