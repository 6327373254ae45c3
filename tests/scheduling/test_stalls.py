"""A loop or a process that stands still is not taken for a provider that is silent."""

from __future__ import annotations

import asyncio

import pytest

from agentrm import IdleTimeout
from agentrm.scheduling.stalls import MOST_STANDS
from tests.scheduling.standstill import FIRST_LIMIT_S, GAP_LIMIT_S, SWEEP_S, World, breathe, read, run


@pytest.mark.parametrize(
    ("awake_s", "stall_s"),
    [(0, GAP_LIMIT_S - 0.5), (0, GAP_LIMIT_S + 5), (0, 250), (GAP_LIMIT_S - 0.1, 0.2)],
)
def test_a_chunk_that_lies_in_the_socket_while_the_loop_stands_still_saves_its_call(
    awake_s: float, stall_s: float
) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader), world.rm.lease(agent="a", streams=True) as lease:
            task = asyncio.ensure_future(read(lease, reader, 3))
            await world.pass_(0.7)  # so that its limit falls between two regular looks
            peer.sendall(b"1")
            await world.pass_(0.5, lambda: lease.beats == 1)
            await world.pass_(awake_s)
            peer.sendall(b"2")
            world.block(stall_s)
            assert lease.beats == 1, "the loop stood still"
            await world.pass_(1)
            peer.sendall(b"3")
            await world.pass_(1, task.done)
            assert await task == 3 and not lease.reaped

    run(work)


def test_a_call_whose_loop_stands_still_before_it_is_sent_has_its_time_afterwards() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            asyncio.get_running_loop().call_soon(world.block, 30)
            async with world.connected() as (peer, reader):
                task = asyncio.ensure_future(read(lease, reader, 1))
                await world.pass_(0.5)
                peer.sendall(b"1")
                await world.pass_(1, task.done)
                assert await task == 1 and not lease.reaped

    run(work)


def test_a_consumer_that_blocks_between_two_chunks_keeps_its_stream() -> None:
    """Then no task is inside the call: the loop is that in which its lane was acquired."""

    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader):
            lease = await world.rm.lease(agent="a", streams=True).acquire_async()
            peer.sendall(b"1")
            await read(lease, reader, 1)
            peer.sendall(b"2")
            world.block(60)
            assert await read(lease, reader, 1) == 2
            lease.release()

    run(work)


def test_a_hung_call_is_found_after_its_limit_and_the_standstill() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            lease.heartbeat()
            task = asyncio.ensure_future(world.never(lease))
            await world.pass_(5)
            world.block(40)
            found = await world.pass_(100, task.done)
            with pytest.raises(IdleTimeout):
                await task
            lease.error = None
            assert GAP_LIMIT_S - SWEEP_S <= 5 + found <= GAP_LIMIT_S + 2 * SWEEP_S

    run(work)


@pytest.mark.parametrize(("block_s", "awake_s"), [(0.6, 0), (0.6, 0.3), (1.5, 0), (1.5, 0.5), (5, 1), (40, 2)])
@pytest.mark.parametrize("begun", [True, False])
def test_a_loop_that_stands_still_again_and_again_hides_no_hung_call(
    begun: bool, block_s: float, awake_s: float
) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            if begun:
                lease.heartbeat()
            task, start = asyncio.ensure_future(world.never(lease)), world.clock.elapsed
            most_s = (GAP_LIMIT_S if begun else FIRST_LIMIT_S) + (MOST_STANDS + 2) * (block_s + awake_s)
            while not task.done() and world.clock.elapsed - start < most_s:
                world.block(block_s)
                await world.pass_(awake_s)
            await breathe()
            assert lease.reaped
            with pytest.raises(IdleTimeout):
                await task
            lease.error = None

    run(work)


def test_nor_does_a_process_that_stands_still_again_and_again() -> None:
    world = World()
    lease = world.rm.lease(agent="a").acquire()
    while not lease.reaped and world.clock.elapsed < 300 + (MOST_STANDS + 2) * 20:
        world.clock._now += 20 * 10**9
        world.clock.advance(1)
    assert lease.reaped
    lease.release()


def test_a_process_that_stood_still_while_a_loop_was_asked_excuses_its_calls_from_the_fixed_limit_too() -> None:
    async def work(world: World) -> None:
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(5)
            world.block(10)
            world.clock._now += 400 * 10**9
            world.clock.advance(0)
            assert not lease.reaped
            await world.pass_(1)
            assert not lease.reaped

    run(work)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_chunk_that_one_task_hands_on_to_another_saves_its_call_too(hops: int) -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.connected() as (peer, reader), world.rm.lease(agent="a", streams=True) as lease:
            queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(hops)]

            async def hand_on(i: int) -> None:
                while True:
                    queues[i].put_nowait(await (queues[i - 1].get() if i else reader.readexactly(1)))

            between = [asyncio.ensure_future(hand_on(i)) for i in range(hops)]

            async def consume() -> None:
                with lease.guard():
                    for _ in range(2):
                        await queues[-1].get()
                        lease.heartbeat()

            task = asyncio.ensure_future(consume())
            peer.sendall(b"1")
            await world.pass_(0.5, lambda: lease.beats == 1)
            await world.pass_(GAP_LIMIT_S - 0.05)
            peer.sendall(b"2")
            world.block(0.06)
            await world.pass_(1, task.done)
            await task
            assert lease.beats == 2 and not lease.reaped
            for other in between:
                other.cancel()

    run(work)
