"""What a person waits for through others is not demoted."""

from __future__ import annotations

import asyncio

import pytest

from agentrm import ResourceManager, VirtualClock
from tests.scheduling.driver import run


@pytest.mark.parametrize(("priority", "level"), [("interactive", 1), ("background", 2)])
def test_a_sub_agent_keeps_its_level_while_somebody_waits_for_its_ancestor(priority: str, level: int) -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, pools={"default": {"lanes": 1}})

    async def main() -> int:
        async with rm.lease(agent="assistant", kind="tool", priority=priority):  # type: ignore[arg-type]
            for _ in range(4):  # far beyond the quantum of its level
                async with rm.lease(agent="reader", tokens=10):
                    await asyncio.sleep(20)
            running = await rm.lease(agent="other", parent=None).acquire_async()
            waiting = asyncio.create_task(rm.lease(agent="reader", tokens=10).acquire_async())
            await asyncio.sleep(0.1)
            (info,) = rm.snapshot().waiting
            running.release()
            (await waiting).release()
            return info.level

    assert run(clock, main) == level
