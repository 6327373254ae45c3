"""Area c: rate limits, retries and back-off. One test for each report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrm import QueueTimeout, RequestTooLarge, ScopeClosed, adapters
from agentrm.adapters import CallSpec
from tests.reports.stub import Provider, Refused
from tests.scheduling.driver import Scene
from tests.scheduling.test_rates import most_in_a_window


def level(scene: Scene, key: str = "pools.default.limits[0]") -> int:
    return scene.rm.statistics().limits[key].level


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("seed_", range(5))
def test_r34_parallel_agents_share_the_back_off(hints: bool, seed_: int) -> None:
    scene = Scene(seed=seed_, pools={"default": {"lanes": 5, "retry": {"attempts": 4}}})
    provider = Provider(scene.clock, seconds=0.2, rate=(2, 2.0), hints=hints)
    results = scene.run_all(*(adapters.acall(scene.rm, CallSpec(agent=f"a{i}"), provider.answer) for i in range(5)))
    assert results == ["answer"] * 5
    assert len(provider.seen) <= 10
    retries = provider.seen[5:]
    gaps = [b - a for a, b in zip(retries, retries[1:], strict=False)]
    assert min(gaps, default=1) > 0.05, retries
    scene.at_rest()


def test_r34_back_off_outlasts_a_long_refusal_and_reaches_nobody_else() -> None:
    scene = Scene(pools={"default": {"lanes": 50, "retry": {"attempts": 8}}})
    provider = Provider(scene.clock, seconds=0.1, rate=(2, 2.0), hints=True)
    other = Provider(scene.clock, seconds=0.1)

    async def quick() -> None:
        for _ in range(20):
            began = scene.now
            await adapters.acall(scene.rm, CallSpec(agent="other", model="other"), other.answer)
            assert scene.now - began == pytest.approx(0.1)

    calls = [adapters.acall(scene.rm, CallSpec(agent=f"a{i}", model="busy"), provider.answer) for i in range(20)]
    results = scene.run_all(*calls, quick())
    assert results == ["answer"] * 20 + [None]
    scene.at_rest()


@pytest.mark.parametrize(
    ("status", "code"), [(429, "insufficient_quota"), (402, "billing_hard_limit_reached"), (401, "invalid_api_key")]
)
def test_r37_no_retry_where_no_wait_can_help(status: int, code: str) -> None:
    scene = Scene(pools={"default": {"lanes": 2, "limits": [{"tokens": 1000, "per": 60}]}})
    refusal = Refused(status, code=code)
    provider = Provider(scene.clock, script=[refusal] * 9)
    spec = CallSpec(agent="a", model="m", input_tokens=10, max_output_tokens=10)
    (result,) = scene.run_all(adapters.acall(scene.rm, spec, provider.answer))
    assert result is refusal and provider.seen == [0] and scene.now == 0
    assert {x.pace for x in scene.rm.statistics().scopes.values()} == {1.0}
    assert level(scene) == 1000
    (result,) = scene.run_all(adapters.acall(scene.rm, spec, provider.answer))
    assert isinstance(result, ScopeClosed) and not result.is_retryable and len(provider.seen) == 1
    scene.rm.reopen()
    provider.script.clear()
    assert scene.run_all(adapters.acall(scene.rm, spec, provider.answer)) == ["answer"]
    scene.at_rest()


def test_r37_a_closed_account_is_tried_again_by_one_call_after_a_while() -> None:
    scene = Scene(pools={"default": {"lanes": 5}})
    provider = Provider(scene.clock, script=[Refused(401)])
    scene.run_all(adapters.acall(scene.rm, CallSpec(agent="a"), provider.answer))

    async def later() -> str:
        await asyncio.sleep(61)
        return await adapters.acall(scene.rm, CallSpec(agent="a"), provider.answer)

    assert scene.run_all(later()) == ["answer"] and len(provider.seen) == 2


@pytest.mark.parametrize("layout", ["one pool", "two pools of an account"])
def test_r39_a_limit_binds_to_what_the_provider_names(layout: str) -> None:
    if layout == "one pool":
        scene = Scene(pools={"default": {"lanes": 4}})
    else:
        scene = Scene(
            accounts={"X": {}},
            pools={"one": {"account": "X", "models": ["m1"]}, "two": {"account": "X", "models": ["m2"]}, "default": {}},
        )
    m1 = Provider(scene.clock, script=[Refused(429, retry_after=60)])
    m2 = Provider(scene.clock)

    async def call(provider: Provider, model: str, at: float) -> Any:
        await asyncio.sleep(max(0, at - scene.now))
        return await adapters.acall(scene.rm, CallSpec(agent=f"{model} at {at}", model=model), provider.answer)

    results = scene.run_all(call(m1, "m1", 0), call(m1, "m1", 5), *(call(m2, "m2", at) for at in (1, 10, 30)))
    assert results == ["answer"] * 5
    assert m2.seen == [1, 10, 30]
    assert m1.seen[0] == 0 and all(60 <= t <= 63 for t in m1.seen[1:])

    m1.script[:] = [Refused(401)]
    m1.seen.clear()
    m2.seen.clear()
    now = scene.now
    results = scene.run_all(call(m1, "m1", now), call(m1, "m1", now + 5), call(m2, "m2", now + 5))
    assert [type(x) for x in results] == [Refused, ScopeClosed, ScopeClosed]
    assert m1.seen == [now] and m2.seen == []


def test_r39_a_refusal_of_the_whole_account_holds_every_model_of_a_pool() -> None:
    """Also where the pool names no account, and for models that were never called before."""
    scene = Scene(pools={"default": {"lanes": 4}})
    m1 = Provider(scene.clock, script=[Refused(429, code="RateLimitExceededPerProjectPerRegion", retry_after=30)])
    m2 = Provider(scene.clock)

    async def call(provider: Provider, model: str, at: float) -> Any:
        await asyncio.sleep(at)
        return await adapters.acall(scene.rm, CallSpec(agent=model, model=model), provider.answer)

    assert scene.run_all(call(m1, "m1", 0), call(m2, "m2", 1), call(m2, "m3", 2)) == ["answer"] * 3
    assert all(30 <= t <= 33 for t in m1.seen[1:] + m2.seen)


def test_r40_waits_until_the_scope_is_usable_or_says_when_it_will_be() -> None:
    """A pool stands for interchangeable backends behind one queue, so it is usable when its scope is: the earliest
    time is the scope's. The hint is kept with some jitter, so that those who wait do not come at once."""
    for budget, sent in ((10, True), (3, False)):
        scene = Scene(pools={"default": {"lanes": 4}})
        provider = Provider(scene.clock, script=[Refused(429, retry_after=5)])

        async def call(budget: int = budget, scene: Scene = scene, provider: Provider = provider) -> Any:
            spec = CallSpec(agent="a", wait_max=budget, retries=False)
            return await adapters.acall(scene.rm, spec, provider.answer)

        (first,) = scene.run_all(call())
        assert isinstance(first, Refused)
        began = scene.now
        (second,) = scene.run_all(call())
        if sent:
            assert second == "answer" and 5 <= provider.seen[1] <= 5.5
        else:
            assert isinstance(second, QueueTimeout) and scene.now == began and len(provider.seen) == 1
            assert "usable in 5" in str(second) and second.retry_after == pytest.approx(5, abs=0.5)


def test_r40_pools_that_cool_to_different_times_are_asked_for_the_earliest() -> None:
    scene = Scene(pools={"a": {"lanes": 1}, "b": {"lanes": 1}, "default": {}})
    providers = {name: Provider(scene.clock, script=[Refused(429, retry_after=s)]) for name, s in (("a", 5), ("b", 9))}

    async def call(pool: str, wait_max: float | None = None) -> Any:
        spec = CallSpec(agent="x", pool=pool, model="m", wait_max=wait_max, retries=False)
        return await adapters.acall(scene.rm, spec, providers[pool].answer)

    scene.run_all(call("a"), call("b"))
    usable = {name: scene.rm.statistics().scopes[f"{name}/m"].closed_for_s for name in "ab"}
    assert 5 <= usable["a"] <= 5.3 and 9 <= usable["b"] <= 9.3
    assert scene.run_all(call(min(usable, key=usable.__getitem__), 10)) == ["answer"]
    assert 5 <= providers["a"].seen[1] <= 5.5 and len(providers["b"].seen) == 1


def test_r41_estimates_are_reserved_together_before_any_call_is_sent() -> None:
    limits = {"default": {"lanes": 9, "limits": [{"tokens": 100, "per": 60}]}}
    scene = Scene(pools=limits)
    results = scene.run_all(*(scene.call(f"c{i}", 1, tokens=40, use=40) for i in range(5)))
    assert results == [f"c{i}" for i in range(5)]
    starts = [at for _, at in scene.started]
    assert starts[:2] == [0, 0] and starts[2:] == pytest.approx([12, 36, 60], abs=0.01)

    scene = Scene(pools=limits)
    scene.run_all(*(scene.call(f"c{i}", 1, tokens=40, use=20) for i in range(5)))
    assert scene.started[2][1] == pytest.approx(1, abs=0.01), "settling gave back what the third needs"
    assert [at for _, at in scene.started[:2]] == [0, 0]


def test_r44_what_is_refused_uses_nothing_up() -> None:
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"requests": 2, "per": 60}]}})
    a = scene.rm.try_lease(agent="A")
    assert a is not None
    for _ in range(5):
        assert scene.rm.try_lease(agent="B") is None
    a.release()
    c = scene.rm.try_lease(agent="C")
    assert c is not None, "C must be admitted in the same minute"
    c.release()
    assert scene.rm.try_lease(agent="D") is None
    scene.clock.advance(60.001)
    d = scene.rm.try_lease(agent="D")
    assert d is not None
    d.release()


def test_r45_streams_are_charged_when_they_end_and_when_they_are_cut() -> None:
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"tokens": 10_000, "per": 1e9}]}})
    charged: list[int] = []

    class Chunk:
        def __init__(self, text: str, usage: dict[str, int] | None = None) -> None:
            self.content, self.usage = text, usage

    async def chunks(many: int, frame: bool) -> AsyncIterator[Chunk]:
        for i in range(many):
            await asyncio.sleep(0.01)
            last = frame and i == many - 1
            yield Chunk("word", {"input_tokens": 100, "output_tokens": 300} if last else None)

    async def read(frame: bool, cut: int | None) -> None:
        before = level(scene)
        spec = CallSpec(agent="a", input_tokens=100, max_output_tokens=300)
        stream = adapters.astream(scene.rm, spec, lambda: chunks(300, frame))
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == cut:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        charged.append(before - level(scene))

    for frame, cut in ((True, None), (False, None), (False, 150)):
        scene.run_all(read(frame, cut))
        scene.rm.kernel.check()
    whole, unreported, half = charged
    assert whole == 400
    assert 300 <= unreported <= 500 and half == pytest.approx((unreported - 100) / 2 + 100, abs=5)
    scene.at_rest()


@pytest.mark.parametrize("oversize", ["refuse", "debt"])
def test_r46_a_request_larger_than_the_bucket_has_a_stated_end(oversize: str) -> None:
    scene = Scene(pools={"default": {"lanes": 9, "oversize": oversize, "limits": [{"tokens": 100, "per": 60}]}})
    if oversize == "refuse":
        (result,) = scene.run_all(scene.call("big", 0, tokens=200))
        assert isinstance(result, RequestTooLarge) and scene.now == 0 and "100" in str(result)
        return

    async def all_() -> None:
        await scene.call("big", 0, tokens=200)
        assert level(scene) == -100
        await asyncio.gather(
            scene.call("one", 0, tokens=1), scene.call("big2", 0, tokens=200), scene.call("big3", 0, tokens=200)
        )

    scene.run(all_)
    assert scene.start_of("big") == 0
    assert scene.start_of("one") == pytest.approx(60.6, abs=0.01)
    big = sorted(at for name, at in scene.started if name.startswith("big"))
    assert all(b - a >= 60 for a, b in zip(big, big[1:], strict=False))


def test_r49_no_rolling_minute_after_a_quiet_spell_is_over_the_limit() -> None:
    scene = Scene(pools={"default": {"lanes": 99, "limits": [{"requests": 15, "per": 60}]}})
    times: list[float] = []

    async def greedy() -> None:
        await asyncio.sleep(600)
        for _ in range(20 * 180):
            lease = scene.rm.try_lease(agent="greedy")
            if lease is not None:
                times.append(scene.now)
                lease.release()
            await asyncio.sleep(0.05)

    scene.run_all(greedy())
    assert most_in_a_window(times, 60) == 15 and len(times) == 45


@pytest.mark.parametrize("strict", [False, True])
def test_r50_all_limits_of_a_call_are_taken_together(strict: bool) -> None:
    backfill = {"passes": 0} if strict else {}
    scene = Scene(
        pools={"default": {"lanes": 9, "limits": [{"requests": 4, "per": 60}, {"tokens": 600, "per": 60}]}},
        waiting={"backfill": backfill},
    )

    async def all_() -> None:
        await scene.call("before1", 0, tokens=250)
        await scene.call("before2", 0, tokens=250)
        x = asyncio.ensure_future(scene.call("X", 1, tokens=500))
        await asyncio.sleep(0)
        assert level(scene) == 2 and level(scene, "pools.default.limits[1]") == 100, "X holds nothing while it waits"
        y = asyncio.ensure_future(scene.call("Y", 1, tokens=50))
        await asyncio.gather(x, y)

    scene.run(all_)
    assert scene.order[2:] == (["X", "Y"] if strict else ["Y", "X"])
    assert (scene.start_of("Y") == 0) is not strict
    assert scene.start_of("X") <= 60.01
    scene.rm.kernel.check()


def test_r50_random_interleavings_never_deadlock(seed: int) -> None:
    for i in range(50):
        dice = random.Random(seed + i)
        scene = Scene(
            pools={"default": {"lanes": 3, "limits": [{"requests": 5, "per": 10}, {"tokens": 500, "per": 10}]}}
        )
        calls = [
            scene.call(
                f"c{k}",
                dice.random() * 5,
                at=dice.random() * 30,
                tokens=dice.randrange(1, 501),
                use=dice.randrange(1, 600),
            )
            for k in range(40)
        ]
        results = scene.run_all(*calls, longest_s=3000)
        assert results == [f"c{k}" for k in range(40)], seed + i
        scene.rm.kernel.check()
        assert scene.rm.statistics().waiting == 0


@pytest.mark.parametrize(("accounts", "total"), [(("x", "x"), 10), (("x", "y"), 20)])
def test_r52_groups_with_one_key_draw_from_one_limit(accounts: tuple[str, str], total: int) -> None:
    scene = Scene(
        accounts={name: {"limits": [{"requests": 10, "per": 60}]} for name in set(accounts)},
        pools={
            f"group{i}": {"account": name, "lanes": 50, "limits": [{"requests": 10, "per": 60}]}
            for i, name in enumerate(accounts)
        },
    )
    scene.run_all(*(scene.call(f"g{g}.{i}", 0, pool=f"group{g}", agent=f"g{g}") for i in range(30) for g in (0, 1)))
    times = sorted(at for _, at in scene.started)
    assert most_in_a_window(times, 60) == total and len(times) == 60


def test_r53_a_child_that_meets_a_limit_pauses_and_goes_on_where_it_was() -> None:
    scene = Scene(pools={"default": {"lanes": 6, "retry": {"attempts": 3}}})
    provider = Provider(scene.clock, seconds=0.5)
    limits = {2: 36, 4: 55}
    ran: dict[int, list[int]] = {i: [] for i in range(6)}
    rejected: dict[int, float] = {}
    status: dict[int, list[str]] = {i: [] for i in range(6)}

    async def child(i: int) -> str:
        for step in range(1, 61):

            async def send(step: int = step) -> str:
                if limits.get(i) == step - 1 and i not in rejected:
                    rejected[i] = scene.now
                    raise Refused(429, retry_after=30)
                ran[i].append(step)
                return await provider.answer()

            await adapters.acall(scene.rm, CallSpec(agent=f"child{i}", model=f"model{i}"), send)
        status[i].append("completed")
        return "completed"

    async def watch() -> None:
        await asyncio.sleep(36 * 0.5 + 10)
        assert [x.agent for x in scene.rm.snapshot().waiting if x.agent == "child2"] == ["child2"]
        assert status[2] == []

    results = scene.run_all(*(child(i) for i in range(6)), watch())
    assert results == ["completed"] * 6 + [None]
    assert all(steps == list(range(1, 61)) for steps in ran.values()), "no step twice, none left out"
    assert set(rejected) == {2, 4} and all(len(x) == 1 for x in status.values())
    scene.at_rest()


def test_r55_the_wait_is_the_deficit_over_the_rate_and_equals_keep_their_order() -> None:
    scene = Scene(pools={"default": {"lanes": 9, "limits": [{"tokens": 1, "per": 1, "burst": 3}]}})
    scene.run_all(scene.call("first", 0, tokens=2), scene.call("second", 0, tokens=2))
    assert scene.start_of("second") == pytest.approx(1, abs=1e-5)

    scene = Scene(pools={"default": {"lanes": 99, "limits": [{"requests": 10, "per": 60, "shape": "bucket"}]}})
    names = [f"w{i:02}" for i in range(20)]
    scene.run_all(*(scene.call(name, 0) for name in names))
    assert scene.order == names
    assert [at for _, at in scene.started] == pytest.approx([0] * 10 + [6 * i for i in range(1, 11)], abs=1e-4)
