"""What can't work is refused at construction, by its full key, with the value and what is allowed."""

from __future__ import annotations

import math
import random
from dataclasses import fields
from typing import Any

import pytest

from agentrm.config import load, parse
from agentrm.config.reference import PLACES
from agentrm.config.sections import Limit, Pool
from agentrm.errors import AgentRMError, ConfigError, shown


def refusal(source: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(source)
    error = caught.value
    assert error.key in str(error)
    assert shown(error.value) in str(error) or f"{error.key} is missing" in str(error)
    assert error.allowed and error.allowed in str(error)
    return error


def at(path: str, value: object) -> dict[str, Any]:
    """The mapping in which `value` stands at `path`, its steps parted by `/` since names may have dots."""
    *outer, last = path.split("/")
    source: dict[str, Any] = {}
    inner = source
    for name in outer:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return source


POSITIVE_WHOLES = [
    "pools/gpt/lanes",
    "pools/gpt/retry/attempts",
    "waiting/max_queued",
    "budgets/tenant.a/tokens",
    "budgets/tenant.a/calls",
]
WHOLES_FROM_ZERO = ["pools/gpt/zombies", "waiting/backfill/passes", "reaper/recover", "reaper/zombies"]
POSITIVE_NUMBERS = [
    "tenants/a/weight",
    "scheduling/boost_s",
    "waiting/max_s",
    "waiting/backfill/max_s",
    "reaper/idle_s",
    "reaper/run_s",
    "reaper/sweep_s",
    "budgets/agent.a/usd",
    "budgets/agent.a/wall_s",
    "budgets/agent.a/per",
    "context/high",
    "context/low",
]
NUMBERS = POSITIVE_WHOLES + WHOLES_FROM_ZERO + POSITIVE_NUMBERS


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize(
    "value", [True, False, "4", "four", [4], {"n": 4}, math.nan, -math.inf, math.inf, -1, -0.5, 10**400]
)
def test_a_number_is_a_positive_finite_number_and_nothing_else(path: str, value: object) -> None:
    error = refusal(at(path, value))
    assert error.key == path.replace("/", ".")
    assert error.value is value


@pytest.mark.parametrize("path", POSITIVE_WHOLES + POSITIVE_NUMBERS)
def test_zero_is_refused_where_it_would_stop_everything(path: str) -> None:
    assert refusal(at(path, 0)).key == path.replace("/", ".")


@pytest.mark.parametrize("path", WHOLES_FROM_ZERO)
def test_zero_is_allowed_where_it_means_something(path: str) -> None:
    load(at(path, 0))


@pytest.mark.parametrize("path", POSITIVE_WHOLES + WHOLES_FROM_ZERO)
def test_a_count_has_no_fraction(path: str) -> None:
    assert refusal(at(path, 4.5)).value == 4.5


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"pool": {}}, "pool"),
        ({"pools": {"gpt": {"lane": 4}}}, "pools.gpt.lane"),
        ({"pools": {"gpt": {"retry": {"attempt": 2}}}}, "pools.gpt.retry.attempt"),
        ({"pools": {"gpt": {"limits": [{"requests": 1, "pre": 60}]}}}, "pools.gpt.limits[0].pre"),
        ({"accounts": {"openai": {"limit": []}}}, "accounts.openai.limit"),
        ({"reaper": {"idles": 3}}, "reaper.idles"),
        ({"waiting": {"backfill": {"pases": 3}}}, "waiting.backfill.pases"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_key_that_was_meant(source: dict[str, Any], key: str) -> None:
    error = refusal(source)
    assert error.key == key
    assert "did you mean" in error.allowed


@pytest.mark.parametrize("key", ["xyz", 1, None, True, ("a",)])
def test_an_unknown_key_is_refused_with_the_list_of_keys(key: object) -> None:
    error = refusal({key: 1})  # type: ignore[dict-item]
    assert "accounts, pools, tenants" in error.allowed
    assert "did you mean" not in error.allowed


@pytest.mark.parametrize("section", ["accounts", "pools", "tenants", "budgets"])
@pytest.mark.parametrize("name", ["", "  ", " a", "a ", 1, True, None])
def test_names_are_text_that_is_not_blank(section: str, name: object) -> None:
    assert refusal({section: {name: {}}}).key == section


@pytest.mark.parametrize(
    "section", ["accounts", "pools", "tenants", "budgets", "reaper", "waiting", "scheduling", "context"]
)
@pytest.mark.parametrize("value", [[], "text", 3, False])
def test_a_section_is_a_mapping(section: str, value: object) -> None:
    assert refusal({section: value}).key == section


@pytest.mark.parametrize("pool", [[], "text", 3, False, 0, ""])
@pytest.mark.parametrize("name", ["default", "tools", "gpt"])
def test_a_pool_is_a_mapping(name: str, pool: object) -> None:
    assert refusal({"pools": {name: pool}}).key == f"pools.{name}"


def test_a_configuration_is_a_mapping() -> None:
    with pytest.raises(ConfigError, match="the configuration"):
        parse("[1, 2]")


@pytest.mark.parametrize("pattern", ["", " ", "gpt-[", "[", "gpt-[34", "[!", "[]", 4, None, True, " gpt-*"])
def test_a_pattern_is_text_with_its_brackets_closed(pattern: object) -> None:
    error = refusal({"pools": {"gpt": {"models": ["ok-*", pattern]}}})
    assert error.key == "pools.gpt.models[1]"


@pytest.mark.parametrize("pattern", ["*", "gpt-*", "gpt-[34]*", "[!a]?", "[]]", "a]"])
def test_shell_patterns_are_patterns(pattern: str) -> None:
    assert load({"pools": {"gpt": {"models": [pattern]}}}).pools["gpt"].models == (pattern,)


@pytest.mark.parametrize("key", ["models", "endpoints", "limits"])
@pytest.mark.parametrize("value", ["gpt-*", {"a": 1}, 3])
def test_a_list_is_a_list_even_of_one(key: str, value: object) -> None:
    assert refusal({"pools": {"gpt": {key: value}}}).key == f"pools.gpt.{key}"


def test_a_pool_names_an_account_that_exists() -> None:
    error = refusal({"accounts": {"openai": {}}, "pools": {"gpt": {"account": "opnai"}}})
    assert (error.key, error.value) == ("pools.gpt.account", "opnai")
    assert "did you mean openai" in error.allowed


@pytest.mark.parametrize("policy", ["mflq", "FIFO", "", 3, True, ["mlfq"]])
def test_a_policy_is_one_that_exists(policy: object) -> None:
    error = refusal({"scheduling": {"policy": policy}})
    assert error.key == "scheduling.policy"
    assert "mlfq, fifo, rr, priority, drf" in error.allowed


@pytest.mark.parametrize("policy", ["mlfq", "fifo", "rr", "priority", "drf"])
def test_the_built_in_policies_are_known(policy: str) -> None:
    assert load({"scheduling": {"policy": policy}}).scheduling.policy == policy


@pytest.mark.parametrize("key", ["quanta_s", "quanta_tokens"])
@pytest.mark.parametrize("value", [[], [1], [1, 2], [1, 2, 3, 4], 5, "1, 2, 3"])
def test_quanta_are_given_for_each_of_the_three_levels(key: str, value: object) -> None:
    assert refusal({"scheduling": {key: value}}).key == f"scheduling.{key}"


@pytest.mark.parametrize("key", ["quanta_s", "quanta_tokens"])
@pytest.mark.parametrize("value", [0, -1, math.nan, -math.inf, True, "8"])
def test_a_quantum_is_above_zero(key: str, value: object) -> None:
    assert refusal({"scheduling": {key: [1, value, 3]}}).key == f"scheduling.{key}[1]"


@pytest.mark.parametrize("value", [math.inf, 7])
def test_a_quantum_may_be_without_end(value: float) -> None:
    assert load({"scheduling": {"quanta_s": [value] * 3}}).scheduling.quanta_s == (value,) * 3


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ({}, "limits[0]"),
        ({"per": 60}, "limits[0]"),
        ({"requests": 5, "tokens": 5, "per": 60}, "limits[0]"),
        ({"requests": 5}, "limits[0].per"),
        ({"tokens": 5}, "limits[0].per"),
        ({"requests": 0, "per": 60}, "limits[0].requests"),
        ({"requests": -5, "per": 60}, "limits[0].requests"),
        ({"requests": True, "per": 60}, "limits[0].requests"),
        ({"requests": 1.5, "per": 60}, "limits[0].requests"),
        ({"tokens": math.nan, "per": 60}, "limits[0].tokens"),
        ({"tokens": math.inf, "per": 60}, "limits[0].tokens"),
        ({"tokens": "200k", "per": 60}, "limits[0].tokens"),
        ({"requests": 5, "per": 0}, "limits[0].per"),
        ({"requests": 5, "per": "minute"}, "limits[0].per"),
        ({"requests": 5, "per": math.inf}, "limits[0].per"),
        ({"tokens": 5, "per": 60, "burst": 0}, "limits[0].burst"),
        ({"requests": 5, "per": 60, "burst": 9}, "limits[0].burst"),
        ({"tokens": 5, "per": 60, "burst": 9, "shape": "rolling"}, "limits[0].burst"),
        ({"requests": 5, "per": 60, "shape": "buket"}, "limits[0].shape"),
        ({"requests": 5, "per": 60, "shape": "gauge"}, "limits[0].shape"),
        ({"memory": 5, "per": 60}, "limits[0].per"),
        ({"memory": 5, "burst": 60}, "limits[0].burst"),
        ({"memory": 5, "shape": "bucket"}, "limits[0].shape"),
        ("500/min", "limits[0]"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limit: object, key: str) -> None:
    assert refusal({"pools": {"gpt": {"limits": [limit]}}}).key == f"pools.gpt.{key}"
    assert refusal({"accounts": {"openai": {"limits": [limit]}}}).key == f"accounts.openai.{key}"


def test_no_call_is_held_to_more_limits_than_the_kernel_takes_at_once() -> None:
    limits = [{"requests": n, "per": n} for n in range(1, 5)]
    error = refusal({"accounts": {"a": {"limits": limits}}, "pools": {"gpt": {"account": "a", "limits": limits}}})
    assert error.key == "pools.gpt.limits"


@pytest.mark.parametrize("scope", ["research", "tenant", "tenant.", "user.x", ".x", "tenant. "])
def test_a_budget_names_what_it_binds(scope: str) -> None:
    assert refusal({"budgets": {scope: {"tokens": 5}}}).key == "budgets"


def test_a_budget_bounds_something() -> None:
    assert refusal({"budgets": {"tenant.a": {"per": 60}}}).key == "budgets.tenant.a"


def test_compaction_ends_below_where_it_starts() -> None:
    assert refusal({"context": {"high": 0.4}}).key == "context.low"
    assert refusal({"context": {"high": 0.5, "low": 0.5}}).key == "context.low"


@pytest.mark.parametrize("store", ["", "sessions.db", "sqlite", "://x", 3, True])
def test_a_store_is_a_url(store: object) -> None:
    assert refusal({"context": {"store": store}}).key == "context.store"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pools/gpt/oversize", "det"),
        ("pools/gpt/oversize", True),
        ("reaper/zombies", "lane"),
        ("reaper/idle_s", "Auto"),
    ],
)
def test_a_word_is_one_of_those_allowed(path: str, value: object) -> None:
    assert refusal(at(path, value)).key == path.replace("/", ".")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("pools: {a: {}}\npools: {b: {}}", "pools"),
        ("pools:\n  a: {lanes: 1}\n  a: {lanes: 2}", "pools.a"),
        ("pools: {a: {limits: [{requests: 1, per: 1, per: 2}]}}", "pools.a.limits[0].per"),
        ("pools: {a: {lanes: 2, lanes: 2}}", "pools.a.lanes"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.key == key


def test_a_number_that_yaml_reads_as_text_is_explained() -> None:
    with pytest.raises(ConfigError, match="YAML reads"):
        parse("reaper: {run_s: 1e6}")


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("not to be read")


@pytest.mark.parametrize("odd", ["a" * 10**6, 10**5000, [1] * 10**5, Unreadable()], ids=["text", "int", "list", "repr"])
@pytest.mark.parametrize("path", [*NUMBERS, "pools/gpt/account", "pools/gpt/models", "reaper", "pools"])
def test_a_refusal_stays_short_whatever_it_refuses(path: str, odd: object) -> None:
    error = refusal(at(path, odd))
    assert len(str(error)) < 800


@pytest.mark.parametrize("name", ["a" * 10**6, "\ud800", Unreadable()], ids=["long", "surrogate", "repr"])
@pytest.mark.parametrize("section", ["reaper", "context", "prices", "conflict_groups"])
def test_nor_does_the_name_of_a_key_make_it_long_or_unprintable(section: str, name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load({section: {name: {}}})
    assert len(str(caught.value).encode()) < 800 and section in str(caught.value)


@pytest.mark.parametrize("path", [path for path in POSITIVE_NUMBERS if path.endswith("_s")])
def test_a_time_is_not_so_short_that_the_kernel_would_take_it_for_none(path: str) -> None:
    assert refusal(at(path, 1e-9)).value == 1e-9
    load(at(path, 0.001))


def test_nor_is_a_weight_or_a_quantum() -> None:
    assert refusal(at("tenants/a/weight", 0.0004)).value == 0.0004
    assert refusal(at("scheduling/quanta_tokens", [0.5, 1, 2])).value == 0.5
    assert refusal(at("scheduling/quanta_s", [1e-7, 1, 2])).value == 1e-7


def test_a_refusal_is_a_value_error_too() -> None:
    assert issubclass(ConfigError, ValueError) and issubclass(ConfigError, AgentRMError)


def test_whatever_stands_anywhere_is_read_or_refused_but_never_fails_otherwise(rng: random.Random) -> None:
    values = [
        None,
        True,
        0,
        -1,
        3,
        2.5,
        math.nan,
        math.inf,
        "",
        "lanes",
        "auto",
        [],
        [1],
        [[]],
        {},
        {"a": 1},
        {1: 2},
    ]
    names = sorted(
        {one.name for kind in (*PLACES, Pool, Limit) for one in fields(kind)} | {*load().__dataclass_fields__}
    )

    def anything(depth: int) -> object:
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(values)
        if rng.random() < 0.2:
            return [anything(depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice(names): anything(depth - 1) for _ in range(rng.randrange(1, 4))}

    outcomes = {"read": 0, "refused": 0}
    for _ in range(3000):
        source = {rng.choice(["pools", "accounts", "reaper", "waiting", "scheduling", "budgets"]): anything(5)}
        try:
            load(source)
            outcomes["read"] += 1
        except ConfigError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0
