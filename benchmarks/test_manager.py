"""One uncontended lease, for pytest-benchmark: `pytest benchmarks`."""

from __future__ import annotations

from typing import Any

from agentrm import ResourceManager
from benchmarks.ours.manager import LIMITS


def test_lease_sync(benchmark: Any) -> None:
    rm = ResourceManager(pools={"default": {"lanes": 4, "limits": LIMITS}})

    def one() -> None:
        with rm.lease(tokens=10):
            pass

    benchmark(one)
    assert rm.statistics().running == 0
