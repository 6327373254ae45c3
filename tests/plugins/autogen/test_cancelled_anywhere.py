"""Calls of AutoGen that are cancelled at whichever point they sleep leave no lane and nobody in the queue."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_core.models import CreateResult, UserMessage
from autogen_core.tools import ToolResult

from agentrm.adapters.conformance import Provider
from agentrm.adapters.conformance.harness import manager
from agentrm.errors import ManagerClosed
from tests.adapters.test_cancelled_anywhere import Sleeps, _settled
from tests.plugins.autogen.scenes import Client, Scripted, agent_of, calling, tool_of, workbench_of

HELLO = [UserMessage(content="hello", source="user")]


async def _slow() -> str:
    """Works."""
    for _ in range(3):
        await asyncio.sleep(0)
    return "done"


def _fast() -> str:
    """Works on a thread."""
    return "done"


async def _create(rm: Any) -> Any:
    return await rm.attach(Client(Provider())).create(HELLO)


async def _create_stream(rm: Any) -> Any:
    return [chunk async for chunk in rm.attach(Client(Provider())).create_stream(HELLO)]


def _tool(fn: Callable[..., Any], stream: bool) -> Callable[[Any], Awaitable[Any]]:
    async def call(rm: Any) -> Any:
        bench = rm.attach(workbench_of(tool_of(fn)))
        if not stream:
            return await bench.call_tool("work")
        return [event async for event in bench.call_tool_stream("work")][-1]

    return call


async def _agent(rm: Any) -> Any:
    agent = rm.attach(agent_of(Scripted(calling("work"), "done"), [_slow_tool()]))
    return await agent.run(task="go")


def _slow_tool() -> Any:
    return tool_of(_slow)


PATHS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "create": _create,
    "create_stream": _create_stream,
    "async tool": _tool(_slow, stream=False),
    "async tool, stream": _tool(_slow, stream=True),
    "sync tool": _tool(_fast, stream=True),
    "agent": _agent,
}


@pytest.mark.parametrize("path", PATHS)
async def test_cancelled_at_any_sleep_it_leaves_nothing(path: str) -> None:
    at, ended = 1, False
    while not ended:
        rm = manager(1, tools=1)

        async def run(rm: Any = rm, at: int = at) -> Any:
            return await Sleeps(PATHS[path](rm), at)

        try:
            result = await asyncio.create_task(run())
            assert not (isinstance(result, ToolResult) and result.is_error), "who is cancelled himself gets no answer"
            ended = True
        except asyncio.CancelledError:
            pass
        await _settled(rm)
        async with rm.lease(), rm.lease(kind="tool"):
            pass
        assert at < 100
        at += 1


async def test_a_copy_of_a_gated_client_goes_through_the_same_manager() -> None:
    rm = manager(1)
    for again in (copy.copy, copy.deepcopy):
        gated = again(rm.attach(Scripted("done")))
        assert isinstance(await gated.create(HELLO), CreateResult)
    assert rm.statistics().pools["default"].granted == 2


async def test_a_client_attached_to_a_closed_manager_refuses_and_a_tool_answers_with_the_refusal() -> None:
    rm = manager(1, tools=1)
    rm.close()
    with pytest.raises(ManagerClosed):
        await rm.attach(Scripted("done")).create(HELLO)
    result = await rm.attach(workbench_of(tool_of(_slow))).call_tool("work")
    assert result.is_error and "clos" in result.to_text()
