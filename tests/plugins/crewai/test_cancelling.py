"""A run that is cancelled: CrewAI goes on in its threads, and the lanes are free all the same."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentrm.adapters.conformance.provider import Reply
from tests.plugins.crewai.scenes import (
    Provider,
    StubLLM,
    Work,
    agent_of,
    calling,
    crew_of,
    granted,
    manager,
    running,
    wait_for,
)
from tests.waiting import come


async def cancelled(run: asyncio.Task[Any]) -> None:
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


@pytest.mark.parametrize("way", ["akickoff", "kickoff_async"])
async def test_the_lane_of_a_call_in_flight_is_free_at_once_and_its_answer_is_dropped(way: str) -> None:
    rm, provider = manager(1), Provider(Reply(holds=True))
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider)), tasks=2))
    run = asyncio.create_task(getattr(crew, way)())
    await come(lambda: provider.open == 1)
    await cancelled(run)

    async with rm.lease(agent="next"):  # the next in line runs while the thread still waits for its provider
        assert provider.open == 1
    await come(lambda: rm.statistics().pools["default"].zombies == 1)
    provider.release()
    await come(lambda: rm.statistics().pools["default"].zombies == 0)
    await asyncio.sleep(0)
    assert (running(rm), granted(rm), provider.calls) == (0, 2, 1), "no second call was made in the left-over thread"


@pytest.mark.parametrize("way", ["akickoff", "kickoff_async"])
async def test_a_call_in_the_queue_leaves_it(way: str) -> None:
    rm, provider = manager(1), Provider()
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider))))
    holder = rm.lease(agent="before").acquire()
    run = asyncio.create_task(getattr(crew, way)())
    await come(lambda: rm.statistics().waiting == 1)
    await cancelled(run)
    await come(lambda: rm.statistics().waiting == 0)
    holder.release()
    assert (running(rm), provider.calls) == (0, 0)


async def test_a_tool_in_flight_is_a_zombie_until_it_ends() -> None:
    rm, began, go = manager(1, tools=1), threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        wait_for(go, "the end of the tool")
        return "done"

    llm = StubLLM(source=Provider(), says=[calling("work"), "Final Answer: done"])
    crew = rm.attach(crew_of(agent_of(llm, [Work(fn=work)])))
    run = asyncio.create_task(crew.akickoff())
    await come(began.is_set)
    await cancelled(run)
    async with rm.lease(agent="next", kind="tool", tool="other"):
        assert rm.statistics().pools["tools"].zombies == 1
    go.set()
    await come(lambda: rm.statistics().pools["tools"].zombies == 0)
    assert (running(rm), running(rm, "tools")) == (0, 0)
