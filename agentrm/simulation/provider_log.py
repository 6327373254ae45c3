"""What has the stub provider seen? Written by its own thread, read and awaited by any other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentrm.simulation.provider_behaviour import Outcome

__all__ = ["ProviderStatistics", "RequestLog", "RequestRecord"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that has ended. Times are real seconds since the provider was started.

    `concurrency` is the number of requests in progress when this came, itself included if it was taken in.
    `client_closed_s` is when the client went away before the answer was complete, else None.
    """

    index: int
    model: str
    agent: str | None
    stream: bool
    outcome: Outcome
    status: int | None
    arrived_s: float
    taken_up_s: float | None
    first_chunk_s: float | None
    ended_s: float
    client_closed_s: float | None
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    chunks_sent: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class ProviderStatistics:
    """Counts since the start. `open_requests` are taken in and not ended."""

    arrived: int
    ended: int
    open_requests: int
    peak_concurrency: int
    outcomes: Mapping[Outcome, int]

    @property
    def http_429(self) -> int:
        """Answers with status 429, of either kind."""
        return self.outcomes.get("rate", 0) + self.outcomes.get("quota", 0)


class RequestLog:
    """The records, the number of requests in progress at each instant, and a way to wait for changes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records: list[RequestRecord] = []
        self._open: list[tuple[float, int]] = [(0.0, 0)]
        self._outcomes: Counter[Outcome] = Counter()
        self._arrived = self._peak = 0

    def arrived(self) -> int:
        """Count a request; its index."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            return self._arrived - 1

    def took_in(self, at_s: float) -> int:
        """A request is in progress; how many are now."""
        with self._changed:
            count = self._open[-1][1] + 1
            self._open.append((at_s, count))
            self._peak = max(self._peak, count)
            self._changed.notify_all()
            return count

    def ended(self, record: RequestRecord, *, taken_in: bool) -> None:
        """A request has ended, which had been taken in or not. Its record and the count change as one."""
        with self._changed:
            if taken_in:
                self._open.append((record.ended_s, self._open[-1][1] - 1))
            self._records.append(record)
            self._outcomes[record.outcome] += 1
            self._changed.notify_all()

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The ended requests in order of arrival."""
        with self._changed:
            return tuple(sorted(self._records, key=lambda record: record.index))

    @property
    def concurrency(self) -> tuple[tuple[float, int], ...]:
        """(second, requests in progress from then on), in order of time."""
        with self._changed:
            return tuple(self._open)

    @property
    def open_requests(self) -> int:
        """Requests in progress now."""
        return self._open[-1][1]

    def statistics(self) -> ProviderStatistics:
        with self._changed:
            return ProviderStatistics(
                arrived=self._arrived,
                ended=len(self._records),
                open_requests=self._open[-1][1],
                peak_concurrency=self._peak,
                outcomes=dict(self._outcomes),
            )

    def wait_until(self, condition: Callable[[ProviderStatistics], bool], timeout: float) -> bool:
        """Block until the condition holds, for at most `timeout` seconds; whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.statistics()), timeout)
