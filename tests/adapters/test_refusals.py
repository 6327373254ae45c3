"""What can't be meant is refused where an object is gated, not at its first call."""

from __future__ import annotations

import logging

import pytest

import agentrm
from agentrm.adapters import CallSpec, call, read_options
from agentrm.adapters.conformance.harness import Threads, manager
from agentrm.adapters.conformance.provider import Provider, Refuse
from agentrm.adapters.copies import Gate
from agentrm.errors import ConfigError
from agentrm.identity import NOBODY


def test_a_misspelt_argument_is_named_with_the_nearest_and_all_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"attach.run: 5 .* run_s, guards; did you mean run_s\?"):
        read_options("attach", {"run": 5})


@pytest.mark.parametrize("given", [{"run_s": "5"}, {"idle_s": 0}, {"wait_max": -1}, {"run_s": True}, {"run_s": float("nan")}])
def test_times_that_cannot_be_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="seconds, a number"):
        read_options("attach", given)


@pytest.mark.parametrize("rm", ["agentrm.yaml", None, agentrm.ResourceManager])
def test_what_is_no_manager_is_refused(rm: object) -> None:
    with pytest.raises(ConfigError, match="a manager"):
        Gate(rm, NOBODY, {})


def test_a_pool_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="'nope' is not allowed; allowed: one of default, tools"):
        Gate(agentrm.ResourceManager(), NOBODY, {"pool": "nope"})


def test_a_caller_that_has_to_wait_for_another_attempt_can_see_why_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = agentrm.VirtualClock()
    rm, provider = manager(clock=clock), Provider(*[Refuse(502)] * 3)
    spec = CallSpec(model="m", agent="indexer", usage=lambda _: None, size=lambda _: 1, input_tokens=1)
    with caplog.at_level(logging.INFO, "agentrm"):
        caller = Threads(lambda: call(rm, spec, provider.call).text)
        provider.wait_calls(4, lambda: clock.advance(1))
        assert caller.outcomes() == ["one two three"]
    said = [(record.levelno, record.getMessage()) for record in caplog.records if "attempt" in record.getMessage()]
    assert [level for level, _ in said] == [logging.INFO, logging.INFO, logging.WARNING]
    assert "agent 'indexer' in pool 'default' failed (Refusal); attempt 2 of 6" in said[0][1]
