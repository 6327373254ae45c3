"""The end of a manager: new work is refused, what waits is told, what runs gets its time, what is left is reported."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentrm import ManagerClosed, ResourceManager, RunTimeout
from tests.scheduling.driver import Scene, in_threads, until

ONE = {"default": {"lanes": 1}}


def test_close_refuses_new_work_and_turns_the_queue_away() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> list[object]:
        holder = asyncio.ensure_future(scene.call("holder", 10))
        waiting = [asyncio.ensure_future(scene.call(f"w{i}")) for i in range(3)]
        await asyncio.sleep(1)
        report = await scene.rm.aclose(timeout=2)
        assert (report.turned_away, [x.agent for x in report.left], report.clean) == (3, ["holder"], False)
        assert scene.now == 3
        results = await asyncio.gather(holder, *waiting, scene.call("new"), return_exceptions=True)
        again = await scene.rm.aclose(timeout=None)
        assert (again.turned_away, again.clean) == (0, True)
        return list(results)

    results = scene.run(all_)
    assert results[0] == "holder" and all(isinstance(x, ManagerClosed) for x in results[1:])
    scene.rm.kernel.check()


def test_close_waits_for_running_work_within_its_limit() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = asyncio.ensure_future(scene.call("holder", 10))
        await asyncio.sleep(1)
        assert (await scene.rm.aclose(timeout=None)).clean
        assert scene.now == 10
        await holder

    scene.run(all_)


def test_close_ends_when_the_last_call_is_reaped() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        task = asyncio.ensure_future(scene.call("hung", 10_000, run_s=5))
        await asyncio.sleep(1)
        assert (await scene.rm.aclose(timeout=None)).clean
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], RunTimeout)

    scene.run(all_, longest_s=100)


def test_close_never_lets_a_waiter_in() -> None:
    """Turning the first away could make room for the next."""
    scene = Scene(
        pools={"default": {"lanes": 4, "limits": [{"tokens": 100, "per": 60}]}}, waiting={"backfill": {"passes": 0}}
    )

    async def all_() -> list[object]:
        await scene.call("first", 0, tokens=60)
        waiting = [asyncio.ensure_future(scene.call(f"w{i}", 1, tokens=90 if i == 0 else 10)) for i in range(3)]
        await asyncio.sleep(1)
        assert scene.rm.statistics().waiting == 3
        assert scene.rm.close().turned_away == 3
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert all(isinstance(x, ManagerClosed) for x in scene.run(all_))
    assert scene.order == ["first"]


def test_close_reports_zombies() -> None:
    scene, go = Scene(pools=ONE), threading.Event()

    def blocked() -> None:
        with pytest.raises(RunTimeout), scene.rm.lease(agent="z", run_s=1):
            go.wait(10)

    (thread,) = in_threads(blocked)
    until(lambda: scene.rm.statistics().running == 1)
    scene.clock.advance(3)
    assert [(x.agent, x.state) for x in scene.rm.close().left] == [("z", "zombie")]
    go.set()
    thread.join(10)
    assert scene.rm.close(timeout=None).clean


def test_close_from_a_thread_wakes_waiting_threads() -> None:
    rm = ResourceManager(pools=ONE)
    held = rm.lease().acquire()
    told: list[type] = []

    def waiting() -> None:
        try:
            rm.lease(agent="w").acquire()
        except ManagerClosed as error:
            told.append(type(error))

    threads = in_threads(*[waiting] * 5)
    until(lambda: len(rm.gate.waiters) == 5)
    assert rm.close(timeout=0).turned_away == 5
    for thread in threads:
        thread.join(10)
    assert told == [ManagerClosed] * 5
    held.release()


def test_a_call_submitted_while_the_manager_closes_is_turned_away_too() -> None:
    scene = Scene(pools=ONE)
    held = scene.rm.lease().acquire()
    late = scene.rm.lease(agent="late")
    submit = scene.rm.gate.port.submit

    def submit_and_close(*args: int) -> int:
        rc = submit(*args)
        scene.rm.close()
        return rc

    scene.rm.gate.port.submit = submit_and_close
    with pytest.raises(ManagerClosed):
        late.acquire()
    scene.rm.gate.port.submit = submit
    held.release()
    assert scene.rm.statistics().running == scene.rm.statistics().waiting == 0
    scene.rm.kernel.check()


def test_the_timer_thread_of_a_quiet_manager_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrm.clock.LINGER_S", 0.01)
    rm = ResourceManager(pools=ONE, reaper={"sweep_s": 0.01})
    with rm.lease():
        pass
    until(lambda: rm.clock._thread is None)  # type: ignore[attr-defined]
    with pytest.raises(RunTimeout), rm.lease(run_s=0.01) as lease:
        until(lambda: lease.reaped)
