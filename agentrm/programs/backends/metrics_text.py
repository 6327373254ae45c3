"""Reads the text format in which engines show their metrics (Prometheus, version 0.0.4)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Metrics", "Sample"]

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Metrics:
    """The samples of one page by name. A line that can't be read is left out: what it said is unknown."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for name, sample in _samples(text):
            self._samples.setdefault(name, []).append(sample)

    def all(self, *names: str) -> list[Sample]:
        """The samples of the first of `names` that is on the page; each counter is looked up with `_total` too."""
        for name in names:
            for spelt in (name, f"{name}_total"):
                if spelt in self._samples:
                    return self._samples[spelt]
        return []

    def total(self, *names: str) -> int | None:
        """The sum over all engines, None if the page has no such metric or one of its values is no number."""
        values = [sample.value for sample in self.all(*names)]
        return None if not values or not all(map(math.isfinite, values)) else round(sum(values))

    def mean(self, *names: str) -> float | None:
        """The mean over all engines, None as for `total`."""
        values = [sample.value for sample in self.all(*names)]
        return None if not values or not all(map(math.isfinite, values)) else sum(values) / len(values)


def _samples(text: str) -> Iterator[tuple[str, Sample]]:
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, Sample({key: _plain(text) for key, text in _LABEL.findall(labels or "")}, number)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
