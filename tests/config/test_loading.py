"""A configuration comes from YAML or plain mappings, complete or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentrm.config import Limit, Pool, load, parse
from agentrm.errors import ConfigError

CANONICAL = """
accounts:  {openai: {limits: [{requests: 3000, per: 60}]}}
pools:
  default: {lanes: 4}
  gpt:     {account: openai, lanes: 8, models: ["gpt-*"], endpoints: ["http://127.0.0.1:1/v1"],
            limits: [{requests: 500, per: 60}, {tokens: 200000, per: 60, burst: 200000}]}
tenants:   {research: {weight: 2}}
scheduling: {policy: mlfq, quanta_s: [10, 30, .inf], quanta_tokens: [8000, 32000, .inf], boost_s: 60}
waiting:   {max_s: null, max_queued: 10000, backfill: {passes: 16, max_s: 2}}
reaper:    {idle_s: auto, run_s: 600, sweep_s: 1, recover: 1, zombies: lanes}
budgets:   {tenant.research: {tokens: 5000000, usd: 20, per: 86400}}
context:   {high: 0.8, low: 0.5, store: "sqlite:///path"}
"""


def test_the_canonical_configuration_is_read_as_written() -> None:
    config = parse(CANONICAL)
    gpt = config.pools["gpt"]
    assert (gpt.account, gpt.lanes, gpt.models) == ("openai", 8, ("gpt-*",))
    assert [
        (limit.resource, limit.amount, limit.per, limit.counting) for limit in config.limits_of("gpt")
    ] == [
        ("requests", 500, 60.0, "rolling"),
        ("tokens", 200_000, 60.0, "bucket"),
        ("requests", 3000, 60.0, "rolling"),
    ]
    assert config.scheduling.quanta_s == (10, 30, math.inf)
    assert config.waiting.max_s is None
    assert config.budgets["tenant.research"].usd == 20
    assert config.context.store == "sqlite:///path"


def test_the_defaults_are_those_of_the_canonical_configuration() -> None:
    bare, canonical = load(), parse(CANONICAL)
    assert bare.scheduling == canonical.scheduling
    assert bare.waiting == canonical.waiting
    assert bare.reaper == canonical.reaper
    assert (bare.context.high, bare.context.low) == (0.8, 0.5)
    assert bare.pools == {"default": Pool(lanes=4), "tools": Pool(lanes=16)}


@pytest.mark.parametrize(
    "source", [None, {}, {"pools": None}, {"reaper": {"run_s": None}}, {"pools": {"default": None}}]
)
def test_null_means_the_default(source: dict[str, object] | None) -> None:
    assert load(source) == load()


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    path = tmp_path / "agentrm.yaml"
    path.write_text("# nothing yet\n")
    assert load(path) == load(str(path)) == load()


def test_a_file_and_the_same_mapping_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agentrm.yaml"
    path.write_text("pools: {gpt: {lanes: 8, models: ['gpt-*']}}")
    assert load(path) == load({"pools": {"gpt": {"lanes": 8, "models": ("gpt-*",)}}})


def test_a_loaded_configuration_goes_through_unchanged() -> None:
    config = parse(CANONICAL)
    assert load(config) is config


def test_the_tool_pool_keeps_its_lanes_when_something_else_is_set() -> None:
    assert load({"pools": {"tools": {"oversize": "debt"}}}).pools["tools"] == Pool(lanes=16, oversize="debt")
    assert load({"pools": {"tools": {"lanes": 2}}}).pools["tools"].lanes == 2


def test_pools_keep_their_order_so_that_the_first_match_wins() -> None:
    config = parse("pools: {b: {models: ['gpt-4*']}, a: {models: ['gpt-*']}}")
    assert list(config.pools) == ["b", "a", "default", "tools"]


def test_a_bucket_holds_its_amount_unless_a_burst_is_given() -> None:
    assert Limit(tokens=100, per=60.0).capacity == 100
    assert Limit(tokens=100, per=60.0, burst=10).capacity == 10
    assert Limit(requests=15, per=60.0).counting == "rolling"
    assert Limit(memory=10).counting == "gauge"


def test_a_configuration_cannot_be_changed() -> None:
    config = parse(CANONICAL)
    with pytest.raises(AttributeError):
        config.reaper.run_s = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.pools["new"] = Pool()  # type: ignore[index]


def test_changing_the_mapping_afterwards_changes_nothing() -> None:
    models = ["gpt-*"]
    config = load({"pools": {"gpt": {"models": models}}})
    models.append("*")
    assert config.pools["gpt"].models == ("gpt-*",)


def test_zombies_of_a_pool_follow_the_reaper_unless_the_pool_says_otherwise() -> None:
    config = parse(
        "{pools: {a: {lanes: 3}, b: {zombies: 0}, c: {lanes: 7, zombies: lanes}}, reaper: {zombies: 2}}"
    )
    assert [config.zombies_of(name) for name in "abc"] == [2, 0, 7]
    assert load({"pools": {"a": {"lanes": 3}}}).zombies_of("a") == 3


def test_a_tenant_that_is_not_listed_never_outweighs_one_that_is_unless_it_is_said() -> None:
    assert load().weight_of("anyone") == 1
    assert load({"tenants": {"a": {"weight": 3}}}).weight_of("anyone") == 1
    assert load({"tenants": {"a": {"weight": 0.2}}}).weight_of("anyone") == 0.2
    assert load({"tenants": {"a": {"weight": 0.2}, "default": {"weight": 5}}}).weight_of("anyone") == 5


def test_explain_shows_every_setting_and_which_are_defaults() -> None:
    rows = {row.key: (row.value, row.is_default) for row in parse(CANONICAL).explain()}
    assert rows["pools.gpt.lanes"] == (8, False)
    assert rows["pools.gpt.limits[1].tokens"] == (200_000, False)
    assert rows["reaper.run_s"] == (600.0, True)
    assert rows["tenants.research.weight"] == (2.0, False)
    assert all(row.is_default for row in load().explain())


def test_a_missing_file_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        load("no/such/file.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "pools: {",
        "a: 1\n---\nb: 2",
        "pools: !!python/object:os.system {}",
        "\x00",
        "pools: 2026-13-45",
        pytest.param("pools: " + "9" * 5000, id="5000 digits"),
        pytest.param("[" * 5000, id="5000 brackets"),
    ],
)
def test_text_that_is_not_one_plain_yaml_document_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, name="agentrm.yaml")
    assert caught.value.key == "agentrm.yaml"


def test_a_fault_of_syntax_is_shown_with_its_line_and_the_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("pools:\n\tgpt: {lanes: 3}\n", name="agentrm.yaml")
    assert "'line 2: \\tgpt: {lanes: 3}'" in str(caught.value) and "cannot start any token" in str(caught.value)


def test_what_has_to_be_said_and_was_not_is_called_missing() -> None:
    with pytest.raises(ConfigError, match=r"^pools.gpt.limits\[0\].per is missing; needed: the window in seconds"):
        load({"pools": {"gpt": {"limits": [{"requests": 5}]}}})


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agentrm.yaml"
    path.write_bytes(b"pools: \xff\xfe\xfa")
    with pytest.raises(ConfigError):
        load(path)
