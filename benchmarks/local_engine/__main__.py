"""The command, and the report that is put together from its files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import benchmarks.local_engine
from benchmarks.local_engine.batch import batch_8
from benchmarks.local_engine.bench import Bench, Row
from benchmarks.local_engine.contention import contention
from benchmarks.local_engine.correctness import memory, preempted_greedy
from benchmarks.local_engine.report import report
from benchmarks.local_engine.turns import turn_kv_kept

ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "turn-kv-kept": turn_kv_kept,
    "preempted-greedy": preempted_greedy,
    "batch-8": batch_8,
    "contention-16-agents": contention,
    "memory": memory,
}
SECTION = Path(__file__).parents[1] / "results_local_engine.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.local_engine", description=benchmarks.local_engine.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, help="of torch, on a CPU (default: what torch takes by itself)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--report", type=Path, nargs="+", help="files of earlier runs")
    args = parser.parse_args()
    if args.report:
        text, missed = report([json.loads(path.read_text()) for path in args.report])
        SECTION.write_text(text)
        print(text)
        return 1 if missed else 0
    import torch
    import transformers

    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    bench = Bench(args.model, args.device, args.dtype, args.quick)
    card = torch.cuda.get_device_name(torch.device(args.device)) if args.device.startswith("cuda") else None
    results: list[Row] = []
    doc = {
        "command": "python -m benchmarks.local_engine " + " ".join(sys.argv[1:]), "model": args.model,
        "device": bench.engine.device, "card": card, "dtype": bench.engine.dtype, "threads_asked": args.threads,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "priority": priority(), "load": os.getloadavg()[0],
        "torch": torch.__version__, "transformers": transformers.__version__,
        "results": results,
    }  # fmt: skip
    for name in args.only:
        for row in ROWS[name](bench):
            results.append(row)
            print(json.dumps(row), flush=True)
            if args.json:
                args.json.write_text(json.dumps(doc, indent=1) + "\n")
    return 1 if any("failed" in row for row in results) else 0


def priority() -> str:
    """Whether other programs can hold this one up."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return "in real time"
    nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
    return f"at nice {nice}" if nice else "as any other program"


if __name__ == "__main__":
    sys.exit(main())
