"""Cancel, interrupt, drop, kill, fork: from every point of a call the lane goes to the next that waits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import warnings

import pytest

from agentrm import ForkedError, ResourceManager
from tests.scheduling.driver import Scene, VirtualLoop, assert_next_runs, in_threads, until

ONE = {"default": {"lanes": 1}}


def test_a_cancel_in_the_queue_leaves_it_at_once() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = asyncio.ensure_future(scene.call("holder", 10))
        await asyncio.sleep(1)
        waiting = [asyncio.ensure_future(scene.call(f"w{i}", 1)) for i in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert scene.rm.statistics().waiting == 2
        await asyncio.gather(holder, *waiting[1:])

    scene.run(all_)
    assert scene.order == ["holder", "w1", "w2"]
    assert scene.rm.statistics().pools["default"].cancelled == 1
    scene.at_rest()


@pytest.mark.parametrize("offset", range(40))
def test_a_cancel_around_the_instant_of_the_grant_never_loses_the_lane(offset: int) -> None:
    """The victim is cancelled `offset - 20` turns of the loop before or after the holder lets go."""
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = scene.rm.lease(agent="holder")
        await holder.acquire_async()
        victim = asyncio.ensure_future(scene.call("victim", 0))
        others = [asyncio.ensure_future(scene.call(f"n{i}", 1)) for i in range(2)]
        await asyncio.sleep(0)

        async def let_go() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            holder.release()

        async def cancel() -> None:
            for _ in range(offset):
                await asyncio.sleep(0)
            victim.cancel()

        await asyncio.gather(let_go(), cancel())
        await asyncio.gather(victim, return_exceptions=True)
        await asyncio.gather(*others)

    scene.run(all_)
    assert [x for x in scene.order if x != "victim"] == ["n0", "n1"] and scene.most_inside == 1
    scene.at_rest()


@pytest.mark.parametrize("order", ["release first", "cancel first"])
def test_a_cancel_in_the_very_same_turn_as_the_grant(order: str) -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = await scene.rm.lease(agent="holder").acquire_async()
        victim = asyncio.ensure_future(scene.call("victim", 0))
        nxt = asyncio.ensure_future(scene.call("next", 1))
        await asyncio.sleep(0)
        steps = [holder.release, victim.cancel]
        for step in steps if order == "release first" else steps[::-1]:
            step()
        await asyncio.gather(victim, return_exceptions=True)
        await nxt

    scene.run(all_)
    assert scene.order == ["next"]
    scene.at_rest()


def test_a_cancel_while_running_frees_the_lane_and_charges_the_input() -> None:
    scene = Scene(pools={"default": {"lanes": 1, "limits": [{"tokens": 1000, "per": 60}]}})

    async def all_() -> None:
        task = asyncio.ensure_future(scene.call("a", 100, input_tokens=100, max_output_tokens=400))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert scene.rm.statistics().limits["pools.default.limits[0]"].level == 900
        await scene.call("b", 1, tokens=10)

    scene.run(all_)
    scene.at_rest()


def test_a_raise_wakes_the_next_waiter() -> None:
    scene = Scene(pools=ONE)

    async def bad(i: int) -> None:
        async with scene.rm.lease(agent=f"bad{i}"):
            await asyncio.sleep(1)
            raise ValueError(i)

    results = scene.run_all(*(bad(i) for i in range(5)), scene.call("good"))
    assert [type(x) for x in results] == [ValueError] * 5 + [str]
    scene.at_rest()


def test_dropped_coroutines_leave_the_queue() -> None:
    scene = Scene(pools=ONE)

    async def all_() -> None:
        holder = await scene.rm.lease().acquire_async()
        waiting = [scene.rm.lease(agent=f"w{i}").acquire_async() for i in range(3)]
        for coroutine in waiting:
            coroutine.send(None)
        assert scene.rm.statistics().waiting == 3
        waiting.pop(1).close()
        del coroutine
        assert scene.rm.statistics().waiting == 2
        waiting.clear()
        gc.collect()
        assert scene.rm.statistics().waiting == 0
        holder.release()
        await scene.call("next")

    scene.run(all_)
    scene.at_rest()


# --- loops that die ---


def abandon_loop(scene: Scene, *, holders: int, waiters: int) -> list[asyncio.Task[str]]:
    """A loop that is closed with calls in it, as after a crash: nothing is cancelled, nothing runs on."""
    loop = VirtualLoop(scene.clock)
    tasks = [loop.create_task(scene.call(f"{i}", 1000)) for i in range(holders + waiters)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    return tasks


def test_waiters_of_a_closed_loop_do_not_hold_up_the_others() -> None:
    scene = Scene(pools=ONE)
    holder = scene.rm.lease(agent="holder").acquire()
    dead = abandon_loop(scene, holders=0, waiters=5)
    assert scene.rm.statistics().waiting == 5
    done: list[int] = []

    def waiting() -> None:
        with scene.rm.lease(agent="alive"):
            done.append(1)

    (thread,) = in_threads(waiting)
    until(lambda: scene.rm.statistics().waiting == 6)
    holder.release()
    thread.join(10)
    assert done == [1] and len(dead) == 5
    scene.at_rest()


def test_ten_thousand_waiters_of_a_closed_loop_are_passed_over_in_one_go() -> None:
    scene = Scene(pools=ONE)
    holder = scene.rm.lease(agent="holder").acquire()
    dead = abandon_loop(scene, holders=0, waiters=10_000)
    assert scene.rm.statistics().waiting == 10_000
    holder.release()
    assert scene.rm.statistics().waiting == 0 and len(dead) == 10_000
    scene.at_rest()


def test_the_lanes_of_a_closed_loop_are_free_at_the_next_sweep() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})
    dead = abandon_loop(scene, holders=2, waiters=3)
    scene.clock.advance(1.001)
    pool = scene.rm.statistics().pools["default"]
    assert (pool.in_use, pool.waiting, pool.failed) == (0, 0, 2)
    assert scene.run(lambda: scene.call("next")) == "next" and dead
    scene.at_rest()


def test_waiters_of_a_closed_loop_leave_the_queue_at_the_next_sweep() -> None:
    scene = Scene(pools=ONE)
    holder = scene.rm.lease(agent="holder").acquire()
    dead = abandon_loop(scene, holders=0, waiters=5)
    scene.clock.advance(1.001)
    assert scene.rm.statistics().waiting == 0 and len(dead) == 5
    holder.release()
    scene.at_rest()


def test_a_grant_on_its_way_to_a_loop_that_closes_goes_on_to_the_next() -> None:
    scene = Scene(pools=ONE)
    holder = scene.rm.lease(agent="holder").acquire()
    loop = VirtualLoop(scene.clock)
    task = loop.create_task(scene.call("dead", 1))
    loop.run_until_complete(asyncio.sleep(0))
    holder.release()
    assert scene.rm.statistics().running == 1
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert scene.run(lambda: scene.call("next")) == "next"
    assert scene.start_of("next") <= 1
    scene.at_rest()


def test_a_grant_that_a_stopped_loop_never_fetches_is_taken_back() -> None:
    scene = Scene(pools=ONE)
    holder = scene.rm.lease(agent="holder").acquire()
    loop = VirtualLoop(scene.clock)
    task = loop.create_task(scene.call("stuck", 1))
    loop.run_until_complete(asyncio.sleep(0))
    holder.release()  # granted to a loop that is not closed and does not run
    assert scene.rm.try_lease() is None
    scene.clock.advance(700)
    assert scene.run(lambda: scene.call("next")) == "next"
    with pytest.raises(TimeoutError):
        loop.run_until_complete(task)
    loop.close()
    scene.at_rest()


def test_several_loops_and_threads_share_one_manager() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 3}})
    lock, inside, most, done = threading.Lock(), 0, 0, 0

    def enter() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def leave() -> None:
        nonlocal inside, done
        with lock:
            inside -= 1
            done += 1

    async def call(i: int) -> None:
        async with rm.lease(agent=f"a{i % 5}"):
            enter()
            await asyncio.sleep(0)
            leave()

    def loop_thread() -> None:
        async def all_() -> None:
            await asyncio.gather(*(call(i) for i in range(200)))

        asyncio.run(all_())

    def plain_thread() -> None:
        for i in range(100):
            with rm.lease(agent=f"t{i % 3}"):
                enter()
                leave()

    threads = in_threads(*[loop_thread] * 4, *[plain_thread] * 4)
    for thread in threads:
        thread.join(60)
    assert done == 4 * 200 + 4 * 100 and most <= 3
    rm.kernel.check()
    assert_next_runs(rm)


# --- interrupts ---


def test_a_keyboard_interrupt_in_a_waiting_thread_leaves_the_queue() -> None:
    rm = ResourceManager(pools=ONE)
    holder = rm.lease(agent="holder").acquire()

    def interrupt() -> None:
        until(lambda: rm.statistics().waiting == 1)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    try:
        threads = in_threads(interrupt)
        with pytest.raises(KeyboardInterrupt):
            rm.lease(agent="waiter").acquire()
    finally:
        signal.signal(signal.SIGINT, before)
    threads[0].join(10)
    assert rm.statistics().waiting == 0
    holder.release()
    rm.kernel.check()
    assert_next_runs(rm)


def test_interrupts_at_any_instruction_of_a_call_leave_a_working_manager() -> None:
    """A signal handler that raises, at a hundred random points. What it breaks at worst is one call each time: a block that
    was entered and cannot be left is a zombie from its run limit on."""
    rm = ResourceManager(pools={"default": {"lanes": 1, "zombies": 100}}, reaper={"run_s": 0.2, "sweep_s": 0.05})

    class Break(BaseException):
        pass

    def handler(*_: object) -> None:
        raise Break

    with rm.lease(agent="first"):
        pass  # the timer thread is started here: a signal inside Thread.start breaks the standard library's own locks
    old = signal.signal(signal.SIGALRM, handler)
    broken = 0
    try:
        for i in range(100):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + i * 0.000_013)
            try:
                while True:
                    with rm.lease(agent="a") as lease:
                        lease.heartbeat()
            except Break:
                broken += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert broken == 100
    with rm.lease(agent="next", wait_max=10):
        rm.kernel.check()


# --- fork ---


def in_child(check: object) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = check()  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    rm = ResourceManager(pools=ONE)
    held = rm.lease(agent="held").acquire()

    def child() -> int:
        for use in (
            lambda: rm.lease(agent="c").acquire(), lambda: rm.try_lease(), rm.statistics, rm.snapshot, held.heartbeat,
            held.release, lambda: list(rm.events()), rm.close, lambda: rm.subscribe(print),
        ):  # fmt: skip
            try:
                use()
            except ForkedError as error:
                if "new ResourceManager in the child" not in str(error):
                    return 2
            else:
                return 3
        own = ResourceManager(pools=ONE)
        with own.lease(wait_max=5):
            pass
        return 0

    assert in_child(child) == 0
    assert rm.statistics().running == 1
    held.release()
    rm.kernel.check()
    assert_next_runs(rm)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_block_left_in_a_forked_child_does_not_hide_what_it_raised() -> None:
    rm = ResourceManager(pools=ONE)

    def child() -> int:
        try:
            lease.__exit__(SystemExit, SystemExit(0), None)
        except ForkedError:
            return 2
        return 0

    with rm.lease() as lease:
        assert in_child(child) == 0
        assert lease.state == "running"
    assert_next_runs(rm)
