"""Prices: which one counts, what it makes of a call, what is doubted, and what a change leaves behind."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager, VirtualClock
from agentrm.config import PriceWarning, load
from agentrm.limits.prices import PriceTable, Use


def table(**prices: Any) -> PriceTable:
    return PriceTable(load({"prices": prices}).prices, VirtualClock())


def test_the_first_pattern_that_matches_counts() -> None:
    prices = PriceTable(
        load({"prices": {"gpt-big": {"input": 5, "output": 5}, "gpt-*": {"input": 1, "output": 1}}}).prices,
        VirtualClock(),
    )
    million = Use(1_000_000, 0)
    assert prices.cost("gpt-big", million) == 5
    assert prices.cost("gpt-small", million) == 1
    assert prices.cost("other", million) == prices.cost(None, million) == "unknown"


def test_each_kind_of_token_has_its_price() -> None:
    prices = table(m={"input": 1.25, "output": 10, "cached": 0.625})
    assert prices.cost("m", Use(262_960, 1_744, cached=257_955)) == pytest.approx(0.1849, abs=1e-4)
    assert prices.cost("m", Use(100, 0, cached=200)) == pytest.approx(200 * 0.625 / 1e6)  # a bad report, clamped


def test_a_free_model_costs_nothing_and_is_not_unknown() -> None:
    assert table(local={"input": 0, "output": 0}).cost("local", Use(1000, 1000)) == 0


@pytest.mark.parametrize(
    "price",
    [{"input": 76e6, "output": 1}, {"input": 0.000003, "output": 1}, {"input": 1, "output": 4, "cached": 2}],
    ids=["per token", "of one token", "cached dearer"],
)
def test_a_price_that_is_hardly_meant_is_warned_about_at_load(price: dict[str, float]) -> None:
    with pytest.warns(PriceWarning, match="prices.m"):
        load({"prices": {"m": price}})


@pytest.mark.parametrize(
    "price",
    [
        {"input": 1},
        {"output": 1},
        {"input": -1, "output": 1},
        {"input": "1", "output": 1},
        {"input": 1, "output": 1, "x": 1},
    ],
    ids=str,
)
def test_what_is_no_price_is_refused(price: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load({"prices": {"m": price}})


def test_usual_prices_are_not_doubted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load({"prices": {"m": {"input": 0.05, "output": 600, "cached": 0.005, "cache_write": 0.0625}}})


def test_a_change_is_kept_and_leaves_the_past_alone() -> None:
    prices = table(m={"input": 1, "output": 1})
    change = prices.set("m", input=2, output=2)
    assert (change.before and change.before.input, change.after.input, change.past) == (1, 2, {})
    assert prices.changes == (change,)
    assert prices.cost("m", Use(1_000_000, 0)) == 2
    prices.set("n*", input=3, output=3)  # a new pattern goes before the others
    prices.set("*", input=9, output=9)
    assert prices.cost("n1", Use(1_000_000, 0)) == 9


def test_the_past_is_reckoned_again_for_the_models_that_it_was_spent_on() -> None:
    with ResourceManager(
        budgets={"agent.a": {"usd": 100}},
        prices={"m": {"input": 10, "output": 10}, "n": {"input": 1, "output": 1}},
    ) as rm:
        for model in ("m", "n"):
            with rm.lease(agent="a", model=model, tokens=10) as lease:
                lease.settle(input_tokens=1_000_000)
        change = rm.prices.set("m", input=20, output=20, past=True)
        assert change.past == {"agent.a": (pytest.approx(11), pytest.approx(21))}


def test_nothing_of_it_is_loaded_unless_configured() -> None:
    code = "import sys, agentrm; agentrm.ResourceManager(); print([m for m in sys.modules if m.startswith('agentrm.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for module in ("budgets", "prices", "guards"):
        assert f"agentrm.limits.{module}" not in loaded
