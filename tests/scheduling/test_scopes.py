"""Scopes at the manager: many models, closings for good, reopening."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentrm import ConfigError, RequestTooLarge, ResourceManager, ScopeClosed, VirtualClock


class BadKey(Exception):
    """What a provider's client raises for a key that is not accepted."""

    status_code = 401

    def __init__(self) -> None:
        super().__init__("invalid api key")
        self.response = SimpleNamespace(status_code=401, headers={})


def call(rm: ResourceManager, model: str = "m1", *, fails: bool = False) -> None:
    lease = rm.lease(model=model).acquire()
    if fails:
        lease.fail(BadKey())
    lease.release()


def test_more_models_than_scopes_share_the_pool_s() -> None:
    rm = ResourceManager()
    for i in range(400):
        call(rm, f"model-{i}")
    rm.kernel.check()
    assert rm.statistics().running == 0


def test_after_its_time_one_call_tries_and_the_others_wait_for_its_answer() -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock)
    call(rm, fails=True)
    with pytest.raises(ScopeClosed):
        call(rm)
    clock.advance(61)
    trial = rm.lease(model="m1").acquire()
    with pytest.raises(ScopeClosed):
        call(rm)
    trial.settle(output_tokens=1)
    trial.release()
    call(rm)


def test_calls_refused_together_close_the_scope_once() -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, pools={"default": {"lanes": 4}})
    leases = [rm.lease(model="m1", parent=None).acquire() for _ in range(4)]
    clock.advance(1)
    for lease in leases:
        lease.fail(BadKey())
    clock.advance(61)
    call(rm)  # 60 s, not 480


def test_reopen_forgets_whatever_the_routes_have_become() -> None:
    rm = ResourceManager(clock=VirtualClock())
    call(rm, fails=True)
    rm.routes.known.clear()
    with pytest.raises(ConfigError, match="one of default, tools"):
        rm.reopen("defualt")
    rm.reopen("default")
    call(rm)


def test_the_limit_that_is_too_small_is_the_one_that_is_named() -> None:
    limits = [{"tokens": 100, "per": 60}, {"memory": 1000}]
    rm = ResourceManager(pools={"default": {"limits": limits, "oversize": "debt"}})
    with pytest.raises(RequestTooLarge, match="5000 memory") as told:
        rm.lease(tokens=500, memory=5000).acquire()
    assert "oversize" not in str(told.value)
