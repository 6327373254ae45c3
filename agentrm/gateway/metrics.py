"""What has happened, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

__all__ = ["Family", "Histogram", "Labels", "Tally", "page"]

Labels = tuple[tuple[str, str], ...]
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Seconds, in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        at = next((i for i, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
        self.counts[at] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {seen}"


class Tally:
    """Counters by name and labels, and two histograms."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {}
        self.queued = Histogram()
        """Seconds between a request and its place on an engine."""
        self.first_token = Histogram()
        """Seconds between a request and the first bytes of its answer."""

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        self._counts.setdefault(name, Counter())[tuple(labels.items())] += amount  # type: ignore[assignment]

    def count(self, name: str) -> float:
        """The sum over all labels."""
        return sum(self._counts.get(name, Counter()).values())

    def families(self) -> Iterator[Family]:
        for name, counts in self._counts.items():
            yield Family(f"agentrm_gateway_{name}_total", "counter", {key: value for key, value in counts.items()})


class Family:
    """All samples of one metric."""

    def __init__(self, name: str, kind: Literal["counter", "gauge"], samples: Mapping[Labels, float]) -> None:
        self.name, self.kind, self.samples = name, kind, samples

    def lines(self) -> Iterator[str]:
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples.items():
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            said = f"{value:.0f}" if value == round(value) else repr(value)  # a counter's every unit shows
            yield f"{self.name}{{{shown}}} {said}" if shown else f"{self.name} {said}"


def page(tally: Tally, gauges: Iterable[Family]) -> str:
    """The whole page."""
    lines = [line for family in (*tally.families(), *gauges) for line in family.lines()]
    for name, histogram in (("queue_seconds", tally.queued), ("first_token_seconds", tally.first_token)):
        lines.append(f"# TYPE agentrm_gateway_{name} histogram")
        lines += histogram.lines(f"agentrm_gateway_{name}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
