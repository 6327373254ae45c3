"""What is learnt of a provider is its own silence, not a standstill of ours."""

from __future__ import annotations

import asyncio

import pytest

from agentrm import IdleTimeout
from tests.scheduling.standstill import FIRST_LIMIT_S, GAP_LIMIT_S, SWEEP_S, World, breathe, run


@pytest.mark.parametrize("begun", [True, False])
def test_a_standstill_is_not_learnt_as_the_provider_s_silence(begun: bool) -> None:
    async def work(world: World) -> None:
        await world.taught()
        before = await world.hang(begun=begun)
        async with world.rm.lease(agent="a", streams=True) as lease:
            if begun:
                await world.pass_(0.5)
                lease.heartbeat()
            world.block(11)
            lease.heartbeat()  # at once, before the loop has answered: the chunk was in the client's buffer
            await breathe()
            assert not lease.reaped
        assert await world.hang(begun=begun) == pytest.approx(before, abs=SWEEP_S)
        assert before == pytest.approx(GAP_LIMIT_S if begun else FIRST_LIMIT_S, abs=SWEEP_S)

    run(work)


def test_nor_is_that_of_a_call_without_chunks_learnt_as_its_duration() -> None:
    async def work(world: World) -> None:
        async def whole(blocked_s: float) -> None:
            async with world.rm.lease(agent="a"):
                await world.pass_(10)
                world.block(blocked_s)
                await breathe()

        async def hung() -> float:
            async with world.rm.lease(agent="hung") as lease:
                task = asyncio.ensure_future(world.never(lease))
                found = await world.pass_(1000, task.done)
                with pytest.raises(IdleTimeout):
                    await task
                lease.error = None
                lease.refund()
            return found

        for _ in range(4):
            await whole(0)
        await whole(9)
        assert await hung() == pytest.approx(60, abs=2 * SWEEP_S)  # six times 10 s, not 19 s

    run(work)


def test_a_slow_provider_is_learnt_whole_where_the_loop_was_awake() -> None:
    async def work(world: World) -> None:
        await world.taught()
        async with world.rm.lease(agent="a", streams=True) as lease:
            await world.pass_(0.5)
            lease.heartbeat()
            await world.pass_(10)
            lease.heartbeat()
        assert await world.hang() == pytest.approx(60, abs=SWEEP_S)

    run(work)
