"""What the gateway adds to the time to the first token, with many streams at once."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gateway.certificate import certificate

ROOT = Path(__file__).parents[2]
STREAMS, CHUNKS, GAP_S, FIRST_S = 200, 60, 0.05, 0.02
BAR_S = 0.0015
KEY = "benchmark"


@contextlib.contextmanager
def running(*arguments: str, cwd: Path = ROOT, **environment: str) -> Iterator[str]:
    """A process of ours; the last word of its first line, which is where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=cwd,
        stderr=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{arguments[0]} did not start")
        yield line.split()[-1].removesuffix("/v1")
    finally:
        process.kill()
        process.communicate()


def times(url: str, seconds: float, *more: str) -> list[float]:
    answer_s = FIRST_S + CHUNKS * GAP_S
    line = [sys.executable, "-m", "benchmarks.gateway.load", url, str(STREAMS), str(answer_s), str(seconds), *more]
    done = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 60)
    found: list[float] = json.loads(done.stdout)
    return found


def measure(rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Direct, through the gateway, and both with TLS (the gateway with a key besides), in turn; p50 and p99 of each
    round in ms. What the gateway with TLS adds is told against both: over TLS the client's own part is in both."""
    cert, key = certificate(folder)
    result: dict[str, Any] = {"streams": STREAMS, "chunks_per_s": 1 / GAP_S, "bar_ms": BAR_S * 1e3}
    engine = ("benchmarks.gateway.engine", str(CHUNKS), str(GAP_S), str(FIRST_S))
    with running(*engine) as one, running(*engine) as two, running(*engine, str(cert), str(key)) as secure:
        backends = {"a": {"url": one, "lanes": 1000}, "b": {"url": two, "lanes": 1000}}
        tls, keys = {"cert": str(cert), "key": str(key)}, {"k": {"env": "BENCHMARK_KEY"}}
        secured: dict[str, object] = {"tls": tls, "keys": keys}
        for name, section in (("plain", {}), ("secured", secured)):
            config = {"gateway": {"port": 0, "backends": backends, **section}}
            (folder / f"{name}.yaml").write_text(json.dumps(config))
        with running("agentrm", "serve", "--config", str(folder / "plain.yaml")) as plain, running(
            "agentrm", "serve", "--config", str(folder / "secured.yaml"), BENCHMARK_KEY=KEY
        ) as safe:
            ways = {
                "direct": (one,), "direct_tls": (secure, "", str(cert)), "gateway": (plain,),
                "tls_and_key": (safe, KEY, str(cert)),
            }  # fmt: skip
            taken: dict[str, list[list[float]]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, (url, *more) in ways.items():
                    taken[name].append(sorted(times(url, seconds, *more)))
    for name, of_rounds in taken.items():
        result[name] = {
            "requests": sum(map(len, of_rounds)),
            "p50_ms": [round(statistics.median(one) * 1e3, 3) for one in of_rounds],
            "p99_ms": [round(one[len(one) * 99 // 100] * 1e3, 3) for one in of_rounds],
        }
    for name, against in (("gateway", "direct"), ("tls_and_key", "direct"), ("tls_and_key", "direct_tls")):
        added = [a - b for a, b in zip(result[name]["p50_ms"], result[against]["p50_ms"], strict=True)]
        result[name].setdefault("added", {})[against] = {
            "p50_ms": round(statistics.median(added), 3), "p50_ms_of_rounds": [round(one, 3) for one in added],
            "met": statistics.median(added) <= BAR_S * 1e3,
        }  # fmt: skip
    return result
