"""`python -m benchmarks [--quick] [--rounds N] [--only NAME ...] [--out FOLDER]`"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks import peers, plot, report, scale, sizes
from benchmarks.measure import Result, compare
from benchmarks.ours import admission, blocks, kernel, manager

# case, module of the peer, its name in the results, the ratio that must be reached (None: for information)
COMPARISONS: list[tuple[str, str, str, float | None]] = [
    ("kernel-cycle", "priority_queue", "queue.PriorityQueue", 2.0),
    ("kernel-cycle-8-threads", "priority_queue", "queue.PriorityQueue", 10.0),
    ("kernel-cycle-8-threads", "default_cffi", "default-cffi", None),
    ("kernel-cycle-busy-thread", "priority_queue", "queue.PriorityQueue", 1.5),
    ("kernel-cycle-busy-thread", "default_cffi", "default-cffi", 20.0),
    ("try-acquire", "langchain", "langchain", 3.0),
    ("try-acquire", "limits", "limits", 15.0),
    ("try-acquire", "throttled_py", "throttled-py", 25.0),
    ("try-acquire", "pyrate_limiter", "pyrate-limiter", 25.0),
    ("admit-10k-burst", "asyncio_semaphore", "asyncio.Semaphore", 25.0 if sys.version_info < (3, 12) else None),
    ("admit-10k-burst", "anyio_semaphore", "anyio.Semaphore", 0.8),
    ("admit-10k-chain", "asyncio_semaphore", "asyncio.Semaphore", 0.7),
    ("admit-10k-chain", "anyio_semaphore", "anyio.Semaphore", None),
    ("enqueue-decide-1000", "litellm", "litellm", 1000.0),
    ("kv-16-blocks", "vllm_block_pool", "vllm BlockPool", 8.0),
    ("kv-16-blocks-list", "vllm_block_pool", "vllm BlockPool", None),
    ("kv-16-blocks-cached", "vllm_block_pool", "vllm BlockPool", 10.0),
    ("lease-async", "aiolimiter", "asyncio.Semaphore + aiolimiter", 1 / 3),
    ("lease-async", "hivemind_scheduler", "hivemind-scheduler", None),
    ("lease-async", "loco_agent", "loco-agent", None),
    ("lease-async", "token_throttle", "token-throttle", None),
    ("lease-async", "adaptive_rate_limiter", "adaptive-rate-limiter", None),
    ("lease-sync", "langchain", "threading.Semaphore + langchain", 1 / 3),
]
OURS = kernel.CASES | blocks.CASES | admission.CASES | manager.CASES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, default=0, help=f"rounds of each case (default {sizes.ROUNDS})")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; the results of the others stay")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the results")
    args = parser.parse_args()
    if args.quick:
        sizes.quick()
    rounds = args.rounds or sizes.ROUNDS
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    wanted = set(args.only)

    results: list[Result] = []
    missing: list[peers.Missing] = []
    versions: dict[str, str] = {}
    extra: dict[str, Any] = {}
    for name, module, peer, bar in COMPARISONS:
        if wanted and name not in wanted:
            continue
        found = peers.find(module)
        if isinstance(found, peers.Missing):
            missing.append(peers.Missing(peer, found.why))
            continue
        try:
            results.append(compare(name, peer, OURS[name](), found.CASES[name](), rounds, bar))
            versions[found.DISTRIBUTION or peer] = peers.version(found)
            if name == "enqueue-decide-1000":
                extra["inversions"] = {"agentrm": kernel.inversions(sizes.DEPTH), peer: found.inversions(sizes.DEPTH)}
        except Exception as error:  # noqa: BLE001 - a peer that fails at run time is reported like one that is not there
            missing.append(peers.Missing(f"{peer} in {name}", f"{type(error).__name__}: {error}"))
            continue
        _say(results[-1])
    for name, measure, label in (
        ("scale-waiters", scale.waiters, "calls waiting"),
        ("scale-tenants", scale.tenants, "tenants"),
    ):
        if wanted and name not in wanted:
            continue
        result, curve = measure(rounds)
        results.append(result)
        _say(result)
        extra.setdefault("curves", {})[name] = [{"x": x, "ns": round(y, 1)} for x, y in curve]
        plot.curve(args.out / f"{name}.svg", f"One cycle of the kernel from Python against {label}", label, curve)
    machines = dict.fromkeys((r.name for r in results), report.machine())
    if wanted:  # what was not measured now stays as it was
        now = {r.name for r in results}
        kept, before, rest, then = report.earlier(args.out, now)
        machines = then | machines
        order = [name for name, *_ in COMPARISONS]
        place = {name: i for i, name in reversed(list(enumerate(order)))}
        results = sorted(kept + results, key=lambda r: place.get(r.name, len(order)))
        versions, extra = before | versions, rest | extra
    report.write(args.out, results, missing, versions, rounds, extra, machines)
    for m in missing:
        print(f"not measured: {m.peer}: {m.why}", file=sys.stderr)
    return 0


def _say(r: Result) -> None:
    bar = "" if r.bar is None else f"  bar {r.bar:.2f}: {'met' if r.passed else 'MISSED'}"
    times = f"{r.ours_ns:12,.0f} {r.peer_ns:14,.0f} ns"
    print(f"{r.name:26} {r.peer:32} {times}  x{r.ratio:,.2f} ({r.low:,.2f}-{r.high:,.2f}){bar}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
