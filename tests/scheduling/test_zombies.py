"""Work that cannot be stopped: its lane is free at once, within a bound, and a late end changes nothing."""

from __future__ import annotations

import threading

from agentrm import RunTimeout
from tests.scheduling.driver import Scene, in_threads, until

ONE = {"default": {"lanes": 1}}


def blocked(scene: Scene, go: threading.Event, results: list[object], name: str = "z", **asked: object) -> None:
    try:
        with scene.rm.lease(agent=name, run_s=1, **asked):  # type: ignore[arg-type]
            go.wait(10)
            results.append("late result")
    except Exception as error:  # noqa: BLE001
        results.append(error)


def test_a_blocked_thread_becomes_a_zombie_and_its_lane_is_free_at_once() -> None:
    scene, go, results = Scene(pools=ONE), threading.Event(), []  # type: ignore[var-annotated]
    (thread,) = in_threads(lambda: blocked(scene, go, results))
    until(lambda: scene.rm.statistics().running == 1)
    scene.clock.advance(3)
    pool = scene.rm.statistics().pools["default"]
    assert (pool.in_use, pool.zombies, pool.reaped) == (0, 1, 1)
    assert [x.agent for x in scene.rm.snapshot().zombies] == ["z"]
    scene.run(lambda: scene.call("next"))
    go.set()
    thread.join(10)
    assert isinstance(results[-1], RunTimeout)
    scene.at_rest()


def test_zombies_are_bounded_and_the_bound_is_back_pressure() -> None:
    scene, go, results = Scene(pools={"default": {"lanes": 2, "zombies": 1}}), threading.Event(), []  # type: ignore[var-annotated]
    threads = in_threads(*(lambda i=i: blocked(scene, go, results, f"z{i}") for i in range(2)))
    until(lambda: scene.rm.statistics().running == 2)
    scene.clock.advance(3)
    pool = scene.rm.statistics().pools["default"]
    assert (pool.zombies, pool.in_use, len(scene.rm.snapshot().zombies)) == (1, 1, 2)
    held = scene.rm.try_lease()
    assert held is not None and scene.rm.try_lease() is None  # 2 lanes, one taken by the zombie beyond the bound
    held.release()
    go.set()
    for thread in threads:
        thread.join(10)
    scene.at_rest()


def test_a_bound_of_zero_keeps_the_lane_until_the_work_ends() -> None:
    scene, go, results = Scene(pools=ONE, reaper={"zombies": 0}), threading.Event(), []  # type: ignore[var-annotated]
    (thread,) = in_threads(lambda: blocked(scene, go, results))
    until(lambda: scene.rm.statistics().running == 1)
    scene.clock.advance(3)
    assert scene.rm.try_lease() is None
    go.set()
    thread.join(10)
    scene.at_rest()


def test_an_abandoned_call_is_a_zombie_without_an_error() -> None:
    scene = Scene(pools=ONE)
    lease = scene.rm.lease().acquire()
    lease.abandon()
    assert not lease.reaped and scene.rm.statistics().pools["default"].zombies == 1
    assert scene.rm.statistics().pools["default"].reaped == 0
    lease.release()
    lease.abandon()
    scene.at_rest()


def test_reap_and_release_at_the_same_moment_end_the_lease_once() -> None:
    """The end of the work comes between the sweep's look and its reap, and the other way round."""
    scene = Scene(pools=ONE)
    for first_release in (True, False):
        lease = scene.rm.lease(run_s=1).acquire()
        sweeper = scene.rm.gate.sweeper
        if first_release:
            lease.release()
            sweeper.reap(lease, "run")
        else:
            sweeper.reap(lease, "run")
            lease.release()
        assert lease.reaped is not first_release
        pool = scene.rm.statistics().pools["default"]
        assert pool.settled + pool.reaped == 1 + (not first_release)
        scene.at_rest()
