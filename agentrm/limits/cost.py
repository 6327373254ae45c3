"""What does one call cost, by the prices of its kinds of tokens?"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost", "Prices", "cost_of"]


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens. `cached` and `written` default to the input price."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """`amount` in the currency of the prices.

    `suspect` names what in the report cannot be true, else None.
    """

    amount: float
    suspect: str | None = None


def cost_of(
    prices: Prices,
    *,
    prompt: int,
    output: int,
    cached: int = 0,
    written: int = 0,
    prompt_includes_cached: bool = True,
) -> Cost:
    """What one call costs: (prompt - cached - written) x input + cached x cached + written x written + output x output.

    `prompt_includes_cached` is True for providers whose prompt count contains the cached tokens (OpenAI, DeepSeek,
    Gemini) and False where it does not (Anthropic). More cached than prompt tokens is a bad report: the full-price
    part is clamped at 0 and the result is marked.
    """
    plain = prompt - cached - written if prompt_includes_cached else prompt
    suspect = None
    if plain < 0:
        suspect = f"cached {cached} + written {written} exceed prompt {prompt}"
        plain = 0
    cached_price = prices.input if prices.cached is None else prices.cached
    written_price = prices.input if prices.written is None else prices.written
    amount = plain * prices.input + cached * cached_price + written * written_price + output * prices.output
    return Cost(amount / 1e6, suspect)
