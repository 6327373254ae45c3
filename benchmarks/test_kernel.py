"""The kernel's operations one by one, for pytest-benchmark: `pytest benchmarks`."""

from __future__ import annotations

from typing import Any

import pytest

from agentrm.core.kernel import Kernel, KernelConfig
from agentrm.core.port import Port, Tap
from benchmarks.ours.kernel import REQUESTS, TOKENS, Traffic


@pytest.mark.parametrize("waiting", [10, 1_000, 100_000])
def test_cycle(benchmark: Any, waiting: int) -> None:
    traffic = Traffic(waiting)
    benchmark.pedantic(traffic.cycles, args=(1_000,), rounds=20, warmup_rounds=2)
    traffic.kernel.check()


@pytest.mark.parametrize("limit", [0, 1], ids=["rolling", "bucket"])
def test_try_acquire(benchmark: Any, limit: int) -> None:
    port = Port(Kernel(KernelConfig(limits=(REQUESTS, TOKENS))), 16_384)
    assert benchmark(Tap(port, limit).try_acquire) == 1
