"""What a model's tokens cost, as the configuration states it, and a warning when a price cannot be meant."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from agentrm.config.readers import number
from agentrm.config.schema import Section, key
from agentrm.errors import ConfigError

HIGHEST_SANE = 10_000.0
"""US dollars per million tokens: a cent per token, far above what any provider asks."""

LOWEST_SANE = 0.001
"""Below a tenth of a cent per million somebody wrote the price of one token, or of a thousand."""


class PriceWarning(UserWarning):
    """A price that is hardly meant: in another unit, or out of line with its neighbours. It is used all the same."""


@dataclass(frozen=True, slots=True)
class Price(Section):
    """US dollars per million tokens of the models that match the pattern; the first pattern that matches counts, so
    `"*"` at the end is the rate for every model that is not listed. No prices are built in: they change too often."""

    input: float | None = key(number(10**12, zero=True), None, "Input tokens not cached; needed, 0 for free.")
    output: float | None = key(number(10**12, zero=True), None, "Output tokens, with reasoning; needed, 0 for free.")
    cached: float | None = key(
        number(10**12, zero=True), None, "Input tokens read from the provider's cache; null: as `input`."
    )
    cache_write: float | None = key(
        number(10**12, zero=True), None, "Input tokens written to the provider's cache; null: as `input`."
    )

    def check(self, key: str) -> None:
        for name in ("input", "output"):
            if getattr(self, name) is None:
                raise ConfigError.missing(f"{key}.{name}", "US dollars per million tokens, 0 for free")
        for name in ("input", "output", "cached", "cache_write"):
            price = getattr(self, name)
            if price is not None and (reason := _doubt(price)) is not None:
                _warn(f"{key}.{name} is {price:g} US dollars per million tokens, {reason}")
        if self.cached is not None and self.input is not None and self.cached > self.input:
            _warn(f"{key}.cached is {self.cached:g}, more than the {self.input:g} of input that is not cached")


def _doubt(price: float) -> str | None:
    if price > HIGHEST_SANE:
        return f"which is {price / 1e6:g} for each token"
    if 0 < price < LOWEST_SANE:
        return "which looks like the price of a single token"
    return None


def _warn(text: str) -> None:
    warnings.warn(f"{text}. Is the unit right?", PriceWarning, stacklevel=6)
