"""Work that is called off: nothing begins any more, whatever framework asks."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import agentrm
from agentrm import ResourceManager, WorkCancelled, cancellable
from agentrm.adapters import CallSpec, acall, call
from tests.scheduling.driver import in_threads, until


def test_after_a_cancellation_no_call_begins() -> None:
    rm = ResourceManager()
    with cancellable() as work:
        with rm.lease():
            work.cancel("the user pressed stop")
            assert work.cancelled
        with pytest.raises(WorkCancelled, match="the user pressed stop"), rm.lease():
            pass
        with pytest.raises(WorkCancelled):
            rm.try_lease(kind="tool", tool="browser")
        with pytest.raises(WorkCancelled):
            call(rm, CallSpec(kind="tool", tool="browser"), lambda: "side effect")
    with rm.lease():  # outside nothing was called off
        pass


async def test_what_waits_leaves_the_queue_and_what_runs_goes_on() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 1}})
    may_end = asyncio.Event()

    async def run() -> str:
        await may_end.wait()
        return "ran"

    with cancellable() as work:
        running = asyncio.ensure_future(acall(rm, CallSpec(), run))
        waiting = [asyncio.ensure_future(acall(rm, CallSpec(), run)) for _ in range(5)]
        while rm.statistics().waiting < 5:
            await asyncio.sleep(0)
    other = asyncio.ensure_future(acall(rm, CallSpec(), run))
    await asyncio.sleep(0)
    work.cancel()
    assert all(isinstance(x, WorkCancelled) for x in await asyncio.gather(*waiting, return_exceptions=True))
    may_end.set()
    assert await running == await other == "ran"
    assert rm.statistics().running == rm.statistics().waiting == 0


def test_threads_that_wait_are_told_too() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 1}})
    held, errors = rm.lease().acquire(), list[BaseException]()
    work = cancellable()

    def ask() -> None:
        with work:
            try:
                rm.lease().acquire()
            except WorkCancelled as error:
                errors.append(error)

    (thread,) = in_threads(ask)
    until(lambda: rm.statistics().waiting == 1)
    work.cancel()
    thread.join()
    assert len(errors) == 1 and not errors[0].is_retryable  # type: ignore[attr-defined]
    held.release()
    assert rm.try_lease() is not None


def test_cancelling_a_block_cancels_those_inside_it_alone() -> None:
    rm = ResourceManager()
    with cancellable() as outer:
        with cancellable() as inner:
            inner.cancel()
            with pytest.raises(WorkCancelled):
                rm.try_lease()
        assert rm.try_lease() is not None
        with cancellable() as second:
            outer.cancel("all of it")
            assert second.cancelled
            with pytest.raises(WorkCancelled, match="all of it"):
                rm.try_lease()


def test_a_block_keeps_no_call_alive() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 1}})
    held = rm.lease().acquire()
    with cancellable() as work:
        for _ in range(20):
            with pytest.raises(agentrm.QueueTimeout):
                rm.lease(wait_max=0).acquire()
    gc.collect()
    assert not work._waiting
    held.release()


def test_cancellations_and_grants_at_once_lose_no_lane() -> None:
    rm = ResourceManager(pools={"default": {"lanes": 2}})
    blocks = [cancellable() for _ in range(40)]
    ended = threading.Semaphore(0)

    def ask(work: cancellable) -> None:
        with work:
            try:
                with rm.lease():
                    pass
            except WorkCancelled:
                pass
        ended.release()

    threads = in_threads(*(lambda work=work: ask(work) for work in blocks for _ in range(3)), *(b.cancel for b in blocks))  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert rm.statistics().running == rm.statistics().waiting == 0
    assert rm.try_lease() is not None and rm.try_lease() is not None
