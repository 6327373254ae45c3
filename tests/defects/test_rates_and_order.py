"""Defects found in other schedulers: rates that are exceeded or not reached, order that is none, collapse and
starvation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrm import adapters
from agentrm.adapters import CallSpec
from agentrm.limits.headers import HeaderLimits, RateWindow
from agentrm.scheduling.waiters import LoopWaiter
from tests.reports.stub import Provider, Refused
from tests.scheduling.driver import Scene
from tests.scheduling.test_rates import most_in_a_window


def test_slow_healthy_calls_do_not_lower_the_pace() -> None:
    """HM 3: 8 s calls took the concurrency from 5 to 1, where it stayed."""
    scene = Scene(pools={"default": {"lanes": 5}})
    provider = Provider(scene.clock, seconds=80)
    calls = [adapters.acall(scene.rm, CallSpec(agent=f"a{i % 7}"), provider.answer) for i in range(100)]
    assert scene.run_all(*calls) == ["answer"] * 100
    assert provider.most == 5 and scene.now == 100 / 5 * 80
    assert all(x.pace == 1 for x in scene.rm.statistics().scopes.values())


def test_one_unlucky_call_does_not_stop_the_others_for_good() -> None:
    """HM 3: one call that met a 429 on each attempt took the concurrency to 1."""
    scene = Scene(pools={"default": {"lanes": 5}})
    provider = Provider(scene.clock, seconds=0.5, script=[Refused(429)] * 6)

    async def unlucky() -> Any:
        return await adapters.acall(scene.rm, CallSpec(agent="unlucky"), provider.answer)

    async def later(i: int) -> Any:
        await asyncio.sleep(60 + 0.1 * i)
        return await adapters.acall(scene.rm, CallSpec(agent=f"a{i}"), provider.answer)

    results = scene.run_all(unlucky(), *(later(i) for i in range(200)))
    assert isinstance(results[0], Refused) and results[1:] == ["answer"] * 200
    healthy = [t for t in provider.seen if t >= 60]
    assert healthy[-1] - healthy[100] < 0.75 * (healthy[99] - healthy[0]), "the pace comes back with the successes"
    assert provider.most >= 1 and scene.now < 60 + 20 + 180


def test_nothing_is_held_while_a_pause_is_waited_out() -> None:
    """HM 8: the slot was held while it slept on Retry-After."""
    scene = Scene(pools={"default": {"lanes": 1}})
    provider = Provider(scene.clock, script=[Refused(429, retry_after=30)])

    async def refused() -> Any:
        return await adapters.acall(scene.rm, CallSpec(agent="a", model="m1"), provider.answer)

    results = scene.run_all(refused(), scene.call("other", 1, at=1, model="m2"))
    assert results == ["answer", "other"] and scene.start_of("other") == 1


def test_waiters_do_not_all_come_back_on_one_beat() -> None:
    """HM 7: 200 waiters restarted within half a millisecond of a shared pause."""
    scene = Scene(pools={"default": {"lanes": 200}})
    provider = Provider(scene.clock, seconds=5, script=[Refused(429, retry_after=10)])

    async def one(i: int) -> Any:
        await asyncio.sleep(0.5 if i else 0)
        return await adapters.acall(scene.rm, CallSpec(agent=f"a{i}"), provider.answer)

    assert scene.run_all(*(one(i) for i in range(200))) == ["answer"] * 200
    back = [t for t in provider.seen if 10 <= t < 15]  # until the first answers show that all is well again
    assert len(back) > 20 and most_in_a_window(back, 0.0005) == 1
    assert back[1] - back[0] >= 0.05


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """TT 1: 900 tokens against ten callers of 50 at 1,000 a second got nothing in 12 s."""
    scene = Scene(pools={"default": {"lanes": 100, "limits": [{"tokens": 1000, "per": 1}]}})

    async def small(i: int) -> None:
        while scene.now < 12:
            await scene.call(f"s{i}", 0.02, tokens=50)

    scene.run_all(*(small(i) for i in range(10)), scene.call("large", 0, at=1, tokens=900))
    assert scene.start_of("large") <= 1 + 2 + 0.9
    assert sum(name != "large" for name in scene.order) > 150


def test_equal_waiters_keep_their_order() -> None:
    """TT 2: 762 of 1,770 pairs were inverted. litellm's scheduler: a third."""
    scene = Scene(pools={"default": {"lanes": 100, "limits": [{"tokens": 50, "per": 1, "burst": 50}]}})
    scene.run_all(*(scene.call(f"{i:02}", 0, tokens=25) for i in range(60)))
    assert scene.order == sorted(scene.order)


@pytest.mark.parametrize("unit", ["requests", "tokens"])
def test_the_first_window_sees_the_limit_and_not_twice_of_it(unit: str) -> None:
    """TT 3, LOCO: a full bucket and its refill let 100 through in the first second of 50."""
    limit = {unit: 50, "per": 1, "shape": "rolling"}
    scene = Scene(pools={"default": {"lanes": 1000, "limits": [limit]}})
    scene.run_all(*(scene.call(f"c{i}", 0, tokens=1) for i in range(200)))
    assert most_in_a_window([at for _, at in scene.started], 1.0) == 50
    assert scene.now == pytest.approx(3, abs=0.001)


def test_a_release_wakes_one_waiter_and_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """TT 4, HM: each grant woke everybody, at 10,000 waiters the processor was full."""
    woken = 0
    wake = LoopWaiter.wake

    def count(self: LoopWaiter, *args: Any) -> None:
        nonlocal woken
        woken += 1
        wake(self, *args)

    monkeypatch.setattr(LoopWaiter, "wake", count)
    scene = Scene(pools={"default": {"lanes": 3}})
    scene.run_all(*(scene.call(f"c{i}", 1) for i in range(300)))
    assert woken == 297


def test_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """TT 5: a step back of 5 s delayed the next grant by 5 s."""
    scene = Scene(pools={"default": {"lanes": 9, "limits": [{"requests": 1, "per": 1}]}})
    monkeypatch.setattr("time.time", lambda: 0.0)
    scene.clock._wall -= 3600
    scene.run_all(*(scene.call(f"c{i}", 0) for i in range(3)))
    assert scene.now == pytest.approx(2, abs=0.001)


def test_without_any_headers_all_lanes_are_used() -> None:
    """ARL 1: one call at a time until a provider sent full headers, which most clients never show."""
    scene = Scene(pools={"default": {"lanes": 20, "limits": [{"requests": 3000, "per": 60}]}})
    provider = Provider(scene.clock, seconds=0.1)
    calls = [adapters.acall(scene.rm, CallSpec(agent=f"a{i}"), provider.answer) for i in range(20)]
    assert scene.run_all(*calls) == ["answer"] * 20
    assert provider.most == 20 and scene.now == pytest.approx(0.1)


def test_a_header_that_never_counts_down_raises_no_limit() -> None:
    """ARL: with '3,000 left' in each answer the whole load went out at once."""
    scene = Scene(pools={"default": {"lanes": 500, "limits": [{"requests": 50, "per": 1}, {"tokens": 5000, "per": 1}]}})

    async def call(i: int) -> None:
        async with scene.rm.lease(agent=f"a{i}", tokens=100) as lease:
            scene.enter(f"c{i}")
            told = HeaderLimits(requests=RateWindow(remaining=3000), tokens=RateWindow(remaining=300_000))
            scene.rm.observe_headers(lease, told)

    scene.run_all(*(call(i) for i in range(200)))
    assert most_in_a_window([at for _, at in scene.started], 1.0) <= 50


@pytest.mark.parametrize("policy", ["priority", "mlfq"])
def test_a_priority_has_effect_within_a_pool(policy: str) -> None:
    """ARL 2, 3: `priority` never dispatched, and priority 9 after ten of 0 was served last."""
    scene = Scene(pools={"default": {"lanes": 1}}, scheduling={"policy": policy})
    calls = [scene.call(f"low{i}", 1, priority="background") for i in range(10)]
    scene.run_all(*calls, scene.call("high", 1, at=0.5, priority="interactive"))
    assert scene.order[1] == "high" and len(scene.order) == 11


def test_settling_gives_back_what_was_not_used() -> None:
    """ARL 6: 50,000 of 60,000 were reserved, released, and 10,000 were left."""
    scene = Scene(pools={"default": {"lanes": 2, "limits": [{"tokens": 60_000, "per": 1e9, "burst": 60_000}]}})
    with scene.rm.lease(tokens=50_000) as lease:
        lease.settle(output_tokens=1000)
    assert scene.rm.statistics().limits["pools.default.limits[0]"].level == 59_000
    scene.run_all(scene.call("next", 0, tokens=59_000))
    assert scene.start_of("next") == 0


def test_a_spacing_of_calls_holds_for_200_callers() -> None:
    """ARL 7: the spacing had no lock, and 200 callers began within 2 ms."""
    scene = Scene(
        pools={"default": {"lanes": 500, "limits": [{"requests": 10, "per": 1, "shape": "bucket", "burst": 1}]}}
    )
    scene.run_all(*(scene.call(f"c{i}", 0) for i in range(200)))
    times = [at for _, at in scene.started]
    assert min(b - a for a, b in zip(times, times[1:], strict=False)) >= 0.0999


@pytest.mark.parametrize("policy", ["mlfq", "drf", "rr"])
def test_a_light_agent_is_not_served_last_behind_a_heavy_one(policy: str) -> None:
    """LOCO 7: who came first was served 301st of 301 behind a heavy agent."""
    scene = Scene(pools={"default": {"lanes": 1}}, scheduling={"policy": policy})
    heavy = [scene.call(f"h{i}", 1, agent="heavy", tokens=5000) for i in range(300)]
    light = [scene.call(f"light{i}", 1, at=10.5 + 30 * i, agent="light", tokens=10) for i in range(5)]
    scene.run_all(scene.call("light", 1, agent="light", tokens=10), *heavy, *light)
    assert scene.order[0] == "light"
    for i in range(5):
        assert scene.start_of(f"light{i}") - (10.5 + 30 * i) <= 2


def test_a_holder_that_asks_again_at_once_does_not_win_every_time() -> None:
    """LangChain's limiter polls: a holder that came back at once won for 20 seconds."""
    scene = Scene(pools={"default": {"lanes": 1}})

    async def greedy() -> None:
        for i in range(100):
            await scene.call(f"A{i}", 0.05, agent="A")

    scene.run_all(greedy(), scene.call("B", 0.05, at=0.01))
    assert scene.order[1] == "B" and scene.start_of("B") == 0.05


def test_a_call_refused_for_its_lanes_uses_up_no_rate() -> None:
    """litellm: calls rejected for concurrency still burned requests per minute."""
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"requests": 2, "per": 60}]}})
    with scene.rm.lease(agent="a"):
        for _ in range(10):
            assert scene.rm.try_lease(agent="b", parent=None) is None
    second = scene.rm.try_lease(agent="b")
    assert second is not None
    second.release()
