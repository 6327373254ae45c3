"""Events, subscriptions, statistics and snapshots say what happened and disturb nothing."""

from __future__ import annotations

import asyncio

import pytest

from agentrm import ResourceManager, RunTimeout
from tests.scheduling.driver import Scene, in_threads

ONE = {"default": {"lanes": 1}}


def test_events_tell_the_life_of_every_call() -> None:
    scene = Scene(pools=ONE)

    async def refunded() -> None:
        async with scene.rm.lease(agent="r") as lease:
            lease.refund()

    async def failing() -> None:
        async with scene.rm.lease(agent="f"):
            raise ValueError

    scene.run_all(
        scene.call("a", 2, tokens=7), scene.call("b", 1), refunded(), failing(), scene.call("hung", 99, run_s=1)
    )
    lives: dict[str, list[tuple[str, str | None]]] = {}
    for e in scene.rm.events():
        lives.setdefault(e.agent, []).append((e.kind, e.outcome))
    ended = {"a": "done", "b": "done", "r": "refunded", "f": "failed", "hung": "failed"}
    assert lives == {name: [("submit", None), ("grant", None), ("settle", how)] for name, how in ended.items()}
    first = next(iter(scene.rm.events()))
    assert (first.kind, first.agent, first.pool, first.tokens) == ("submit", "a", "default", 7)


def test_events_say_how_long() -> None:
    scene = Scene(pools=ONE)
    scene.run_all(scene.call("a", 2), scene.call("b", 3))
    seconds = [(e.agent, e.kind, e.seconds) for e in scene.rm.events() if e.kind != "submit"]
    assert seconds == [("a", "grant", 0), ("a", "settle", 2), ("b", "grant", 2), ("b", "settle", 3)]


def test_events_go_on_from_a_number() -> None:
    scene = Scene(pools=ONE)
    scene.run(lambda: scene.call("a"))
    last = list(scene.rm.events())[-1].seq
    scene.run(lambda: scene.call("b"))
    assert {e.agent for e in scene.rm.events(last + 1)} == {"b"}
    assert list(scene.rm.events(10**9)) == []


def test_a_subscriber_hears_everything_once_in_order() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})
    heard: list[int] = []
    subscription = scene.rm.subscribe(lambda e: heard.append(e.seq))
    scene.run_all(*(scene.call(f"c{i}", 1, wait_max=5) for i in range(20)))
    assert heard == [e.seq for e in scene.rm.events()] and subscription.lost == 0
    subscription.close()
    subscription.close()
    scene.run(lambda: scene.call("later"))
    assert len(heard) < len(list(scene.rm.events()))


def test_cancel_and_reap_are_heard_at_once() -> None:
    scene = Scene(pools=ONE)
    heard: list[tuple[str, float]] = []
    scene.rm.subscribe(lambda e: heard.append((e.kind, scene.now)))
    scene.run_all(scene.call("hung", 100, run_s=10), scene.call("tired", wait_max=3))
    assert ("cancel", 3) in heard and ("settle", 10) in heard
    lease = scene.rm.lease(run_s=1).acquire()
    scene.clock.advance(3)
    assert heard[-1][0] == "reap"
    lease.release()
    assert heard[-1][0] == "zombie_end"


def test_a_subscriber_may_use_the_manager() -> None:
    """A lease taken and released in the callback makes events of its own; they are heard after this one."""
    scene = Scene(pools={"default": {"lanes": 2}})
    heard: list[str] = []

    def hear(event: object) -> None:
        heard.append(f"{event.kind} {event.agent}")  # type: ignore[attr-defined]
        if event.agent == "a":  # type: ignore[attr-defined]
            with scene.rm.lease(agent="inner", parent=None):
                scene.rm.statistics()

    scene.rm.subscribe(hear)
    scene.run(lambda: scene.call("a"))
    assert heard.count("submit inner") == heard.count("settle inner") == 3
    scene.at_rest()


def test_a_failing_subscriber_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(pools=ONE)

    def bad(event: object) -> None:
        raise RuntimeError("from the subscriber")

    heard: list[object] = []
    scene.rm.subscribe(bad)
    scene.rm.subscribe(heard.append)
    assert scene.run_all(scene.call("a"), scene.call("b")) == ["a", "b"]
    assert len(heard) == 6 and "a subscriber failed" in caplog.text
    scene.at_rest()


def test_a_slow_subscriber_loses_events_and_knows_how_many() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    heard: list[int] = []
    subscription = scene.rm.subscribe(lambda e: heard.append(e.seq))
    subscription._lock.acquire()  # a callback that does not come back
    room = scene.rm.layout.kernel.events
    for _ in range(room):
        with scene.rm.lease():
            pass
    subscription._lock.release()
    with scene.rm.lease():
        pass
    assert subscription.lost > 0 and subscription.lost + len(heard) == scene.rm.kernel.event_head()


def test_subscribers_in_many_threads_hear_each_event_once() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 4}})
    heard: list[int] = []
    rm.subscribe(lambda e: heard.append(e.seq))

    def work(i: int) -> None:
        for _ in range(100):
            with rm.lease(agent=f"a{i}"):
                pass

    for thread in in_threads(*(lambda i=i: work(i) for i in range(8))):
        thread.join(30)
    rm.gate.publish()
    assert heard == sorted(set(heard)) and len(heard) == 8 * 100 * 3


def test_the_snapshot_says_who_holds_and_who_waits_longest_first() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})

    async def all_() -> None:
        calls = []
        for i, priority in enumerate(("interactive", "interactive", "subagent", "background")):
            calls.append(
                asyncio.ensure_future(scene.call(f"c{i}", 50, priority=priority, tenant="t", session="s", tokens=9))
            )
            await asyncio.sleep(1)
        snapshot = scene.rm.snapshot()
        assert [(x.agent, x.for_s) for x in snapshot.holding] == [("c0", 4), ("c1", 3)]
        assert [(x.agent, x.priority, x.level, x.for_s) for x in snapshot.waiting] == [
            ("c2", "subagent", 1, 2), ("c3", "background", 2, 1),
        ]  # fmt: skip
        assert {(x.tenant, x.session, x.pool, x.tokens) for x in snapshot.holding + snapshot.waiting} == {
            ("t", "s", "default", 9)
        }
        assert snapshot.zombies == ()
        await asyncio.gather(*calls)

    scene.run(all_)
    assert scene.rm.snapshot().holding == ()


def test_statistics_count_every_way_out() -> None:
    scene = Scene(pools=ONE)

    async def refunded() -> None:
        async with scene.rm.lease(agent="r") as lease:
            lease.refund()

    async def failing() -> None:
        async with scene.rm.lease(agent="f"):
            raise ValueError

    results = scene.run_all(
        scene.call("a", 2),
        scene.call("b", 2),
        refunded(),
        failing(),
        scene.call("tired", wait_max=1),
        scene.call("hung", 99, run_s=1),
    )
    assert isinstance(results[-1], RunTimeout)
    pool = scene.rm.statistics().pools["default"]
    counts = (pool.granted, pool.settled, pool.refunded, pool.failed, pool.cancelled, pool.reaped)
    assert counts == (5, 2, 1, 1, 1, 1)
    assert pool.mean_wait_s == pytest.approx((0 + 2 + 4 + 4 + 4) / 5)
    assert scene.rm.statistics().events == len(list(scene.rm.events()))


def test_limits_and_scopes_are_shown() -> None:
    scene = Scene(
        accounts={"x": {"limits": [{"requests": 9, "per": 60}]}},
        pools={"default": {"account": "x", "limits": [{"tokens": 100, "per": 60, "burst": 50}]}},
    )
    with scene.rm.lease(tokens=20, model="m"):
        limits = scene.rm.statistics().limits
        assert (limits["accounts.x.limits[0]"].level, limits["accounts.x.limits[0]"].capacity) == (8, 9)
        assert (limits["pools.default.limits[0]"].level, limits["pools.default.limits[0]"].capacity) == (30, 50)
    scopes = scene.rm.statistics().scopes
    assert scopes["default/m"].pace == scopes["account x"].pace == 1.0
    assert "1 running" not in repr(scene.rm) and "0 running, 0 waiting" in repr(scene.rm)


def test_level_of_a_waiting_call_changes_as_it_ages() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = asyncio.ensure_future(scene.call("holder", 100))
        old = asyncio.ensure_future(scene.call("old", 1, priority="background"))
        await asyncio.sleep(1)
        assert [x.level for x in scene.rm.snapshot().waiting] == [2]
        await asyncio.gather(holder, old)

    scene.run(all_)
    assert [(e.agent, e.level) for e in scene.rm.events() if e.kind == "grant"] == [("holder", 0), ("old", 1)]
