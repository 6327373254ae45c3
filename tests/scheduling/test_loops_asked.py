"""Whether a loop stands still it is asked: seldom, and whoever is not asked or never answers is not excused."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentrm import IdleTimeout, VirtualClock
from agentrm.clock import Timer
from agentrm.scheduling import Lease
from tests.scheduling.standstill import GAP_LIMIT_S, SWEEP_S, World, breathe, run


def test_a_loop_that_never_answers_keeps_its_calls_until_their_fixed_limit() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            lease.heartbeat()
            world.block(299)
            assert not lease.reaped
            world.block(2)
            assert lease.reaped and world.rm.statistics().running == 0, "its lane is free before the loop is back"
            lease.error = None

    run(work)


def test_a_loop_is_asked_once_a_sweep_however_many_calls_it_has_and_never_while_all_show_progress() -> None:
    asked: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **more: Any) -> Any:
            asked.append(args)
            return super().call_soon_threadsafe(*args, **more)

    async def work(world: World) -> None:
        leases = [await world.rm.lease(agent=f"a{i}", streams=True).acquire_async() for i in range(50)]
        for _ in range(10):
            await world.pass_(0.5)
            for lease in leases:
                lease.heartbeat()
        assert not asked
        await world.pass_(11)
        assert len(asked) == 10  # the first sweep saw them after less than one of silence
        world.block(100)
        assert len(asked) == 11, "one question, not one each second"
        for lease in leases:
            lease.release()

    world, loop = World(), Loop()
    loop.run_until_complete(work(world))
    loop.close()


def test_nobody_looks_more_often_because_a_loop_stands_still() -> None:
    looks: list[int] = []

    class Clock(VirtualClock):
        def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
            looks.append(when_ns)
            return super().call_at(when_ns, fn)

    async def work(world: World) -> None:
        leases = [await world.rm.lease(agent=f"a{i}", streams=True).acquire_async() for i in range(20)]
        for lease in leases:  # at any moment one of them is about to have been silent for too long
            lease.heartbeat()
            await world.pass_(0.05)
        await world.pass_(58.6)
        looks.clear()
        world.block(100)
        assert 90 <= len(looks) <= 120  # one a second, and when each call was due
        for lease in leases:
            assert not lease.reaped
            lease.release()

    run(work, Clock())


def test_a_loop_that_closes_without_an_answer_excuses_nobody_any_more() -> None:
    world = World()
    leases: list[Lease] = []

    async def work() -> None:
        await world.taught()
        leases.append(await world.rm.lease(agent="a", streams=True).acquire_async())
        leases[0].heartbeat()

    def last() -> None:
        world.block(10)  # the loop is asked
        raise SystemExit

    loop = asyncio.new_event_loop()
    loop.run_until_complete(work())
    loop.call_soon(last)
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.close()
    world.clock.advance(GAP_LIMIT_S - 10 + SWEEP_S)
    assert leases[0].reaped
    leases[0].release()


def test_a_loop_that_stands_still_excuses_no_call_of_another_loop() -> None:
    async def work(world: World) -> None:
        await world.taught()
        begun, others = threading.Event(), []

        async def elsewhere() -> None:
            others.append(asyncio.get_running_loop())
            with pytest.raises(IdleTimeout):
                async with world.rm.lease(agent="hung", streams=True) as hung:
                    hung.heartbeat()
                    begun.set()
                    await asyncio.Event().wait()

        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        async with world.rm.lease(agent="here", streams=True) as lease:
            thread.start()
            assert begun.wait(10)
            lease.heartbeat()
            while thread.is_alive() and world.clock.elapsed < 60:  # this loop stands still, the other one goes round
                world.clock.advance(0.5)
                work = breathe()
                try:
                    asyncio.run_coroutine_threadsafe(work, others[0]).result(10)
                except (RuntimeError, concurrent.futures.CancelledError):  # it has ended
                    work.close()
                    thread.join(10)
            assert not thread.is_alive() and not lease.reaped
        thread.join(10)

    run(work)


def test_a_process_that_stood_still_excuses_blocked_threads_too() -> None:
    world = World()
    lease = world.rm.lease(agent="a").acquire()
    other = world.rm.lease(agent="b", idle_s=20).acquire()
    world.clock.advance(10)
    world.clock._now += 290 * 10**9  # stopped: no sweep comes in this time
    world.clock.advance(0)
    assert not lease.reaped and not other.reaped
    world.clock.advance(12)
    assert other.reaped and not lease.reaped
    world.clock.advance(300 - 22 + 2)
    assert lease.reaped
    lease.release()
    other.release()
