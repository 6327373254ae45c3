"""The loopback provider in a process of its own, so that neither the agents nor the local model slow it down."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from agentrm.demo.scenario import HOSTED, Luck, Scenario
from agentrm.simulation.provider import ProviderStatistics, RequestRecord, SimulationError, StubProvider

__all__ = ["Finished", "ProviderProcess"]

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What the provider saw: each request, and how many were still open when the agents had ended."""

    records: tuple[RequestRecord, ...]
    left_open: int


class ProviderProcess:
    """Starts when entered, is gone when left. Its records count from `started`, an instant of `time.monotonic`."""

    def __init__(self, scenario: Scenario) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, scenario), name="agentrm-provider", daemon=True)
        self._child = child
        self.base_url = ""
        self.started = 0.0

    def __enter__(self) -> ProviderProcess:
        self._process.start()
        self._child.close()
        self.base_url, self.started = self._receive()
        return self

    def statistics(self) -> ProviderStatistics:
        """Counts so far."""
        self._pipe.send("count")
        found: ProviderStatistics = self._receive()
        return found

    def finish(self, grace_s: float) -> Finished:
        """Gives open requests `grace_s` to close, then stops the provider and fetches its records."""
        self._pipe.send(grace_s)
        found: Finished = self._receive()
        return found

    def _receive(self) -> Any:
        if not self._pipe.poll(_PATIENCE_S):
            raise SimulationError(f"the provider's process said nothing for {_PATIENCE_S:g} s")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise SimulationError("the provider's process ended before its time; its error stands above") from None
        return answer

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()  # the child ends when nobody asks any more
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, scenario: Scenario) -> None:
    provider = StubProvider(
        Luck(scenario), seed=scenario.seed, limits=[scenario.limit], slots=scenario.provider_lanes, strict_pairs=True,
        models=(HOSTED,),
    )  # fmt: skip
    started = time.monotonic()
    with provider:
        pipe.send((provider.base_url, started))
        try:
            while (asked := pipe.recv()) == "count":
                pipe.send(provider.statistics())
        except (EOFError, KeyboardInterrupt):
            return
        provider.wait_until(lambda seen: seen.open_requests == 0, asked)
        left = provider.open_requests
    pipe.send(Finished(provider.log, left))
