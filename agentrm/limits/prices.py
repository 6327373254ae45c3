"""What does a call cost? By model, from the prices that the user states; what nobody stated is unknown, never zero.

No prices are built in. They change often, differ by contract and region, and a wrong one is worse than none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentrm.limits.cost import Prices, cost_of

if TYPE_CHECKING:
    from agentrm.clock import Clock
    from agentrm.config.prices import Price

__all__ = ["UNKNOWN", "Cost", "PriceChange", "PriceTable", "Use"]

UNKNOWN: Literal["unknown"] = "unknown"
Cost = float | Literal["unknown"]
"""US dollars, or `unknown` where no price is known."""

MOST_MODELS = 10_000


class Use(NamedTuple):
    """Tokens of one call. `input` includes `cached` (read from the provider's cache) and `written` (written to it)."""

    input: int
    output: int
    cached: int = 0
    written: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def __add__(self, other: Use) -> Use:  # type: ignore[override]
        return Use(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class PriceChange:
    """The record of one change. `wall`: seconds since 1970. `past`: US dollars that budgets had spent (before,
    after), by name; empty if what was spent stayed as it was."""

    pattern: str
    before: Price | None
    after: Price
    wall: float
    past: Mapping[str, tuple[float, float]]


class PriceTable:
    """Prices by patterns of model names; the first that matches counts. Safe from any thread."""

    def __init__(self, prices: Mapping[str, Price], clock: Clock) -> None:
        self._clock = clock
        self._by_pattern = dict(prices)
        self._by_model: dict[str, Prices | None] = {}
        self._lock = threading.Lock()
        self.rewrite: Callable[[], Mapping[str, tuple[float, float]]] = dict
        """Reckons again what was spent; set by the budgets."""
        self.changes: tuple[PriceChange, ...] = ()
        """Every change since the table was made."""

    def of(self, model: str | None) -> Prices | None:
        """What the model's tokens cost per million, None if nobody said."""
        name = model or ""
        try:
            return self._by_model[name]
        except KeyError:
            pass
        patterns = self._by_pattern  # never changed in place
        found = next((price for pattern, price in patterns.items() if fnmatchcase(name, pattern)), None)
        known = None
        if found is not None:
            known = Prices(found.input or 0.0, found.output or 0.0, found.cached, found.cache_write)
        if len(self._by_model) >= MOST_MODELS:
            self._by_model = {}
        if patterns is self._by_pattern:
            self._by_model[name] = known
        return known

    def cost(self, model: str | None, use: Use) -> Cost:
        """US dollars for `use` of the model, or `unknown`."""
        prices = self.of(model)
        return UNKNOWN if prices is None else cost(prices, use)

    def set(
        self,
        pattern: str,
        *,
        input: float,
        output: float,
        cached: float | None = None,
        cache_write: float | None = None,
        past: bool = False,
    ) -> PriceChange:
        """States a price, in US dollars per million tokens; it goes before the others unless its pattern is listed.

        What was spent stays as it was, unless `past`: then every budget reckons its present window again at the new
        price. Either way the change is kept in `changes`. Raises ConfigError, warns as at load (PriceWarning).
        """
        from agentrm.config.prices import Price
        from agentrm.config.schema import section

        given = {"input": input, "output": output, "cached": cached, "cache_write": cache_write}
        price = section(Price).read(given, f"prices.{pattern}")
        with self._lock:
            before = self._by_pattern.get(pattern)
            here = {pattern: price}
            self._by_pattern = {**here, **self._by_pattern} if before is None else {**self._by_pattern, **here}
            self._by_model = {}
            moved = self.rewrite() if past else {}
            change = PriceChange(pattern, before, price, self._clock.wall(), moved)
            self.changes += (change,)
        return change


def cost(prices: Prices, use: Use) -> float:
    """US dollars."""
    return cost_of(prices, prompt=use.input, output=use.output, cached=use.cached, written=use.written).amount


def most(prices: Prices, input_tokens: int, output_tokens: int) -> float:
    """US dollars that so many tokens cost at most, however much of the input is cached or written."""
    return (input_tokens * max(prices.input, prices.written or 0.0) + output_tokens * prices.output) / 1e6


def dearest(prices: Prices) -> float:
    """US dollars for a million tokens of the dearest kind: for a total of which nobody knows what is output."""
    return max(prices.input, prices.written or 0.0, prices.output)
