"""anyio.Semaphore: lanes in order of arrival, without priorities, limits or fairness."""

from __future__ import annotations

import anyio

from benchmarks.admission import burst, chain

DISTRIBUTION = "anyio"


class _Turnstile:
    def __init__(self) -> None:
        semaphore = anyio.Semaphore(0)
        self.wait, self.release_one = semaphore.acquire, semaphore.release


CASES = {
    "admit-10k-burst": lambda: lambda: burst(_Turnstile),
    "admit-10k-chain": lambda: lambda: chain(_Turnstile),
}
