"""Traps 1 to 6 and 13 of AutoGen: tools that raise, hang, are cancelled, stream, hand over or run an agent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_agentchat.messages import HandoffMessage, ToolCallExecutionEvent
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import CancellationToken
from autogen_core.tools import StaticStreamWorkbench, StaticWorkbench, ToolResult, Workbench

import agentrm
from agentrm.adapters.conformance.provider import PATIENCE_S, Hang, Provider
from tests.plugins.autogen.scenes import (
    Client,
    Scripted,
    agent_of,
    calling,
    granted,
    manager,
    run_async,
    running,
    team_of,
    tool_of,
    workbench_of,
)
from tests.waiting import come


class _Raising(Workbench):
    """A workbench of a user, which does what the interface forbids."""

    component_type = "workbench"

    async def list_tools(self) -> Any:
        return [{"name": "work", "description": "works"}]

    async def call_tool(self, *_: Any, **__: Any) -> ToolResult:
        raise LookupError("no such record")

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def reset(self) -> None: ...
    async def save_state(self) -> Any:
        return {"calls": 3}

    async def load_state(self, state: Any) -> None:
        self.loaded = state


def _results(messages: Any) -> list[Any]:
    return [result for m in messages if isinstance(m, ToolCallExecutionEvent) for result in m.content]


def _calls_work(tools: Any = (), **more: Any) -> Any:
    return agent_of(Scripted(calling("work"), "done"), tools, **more)


@pytest.mark.parametrize("in_team", [False, True])
def test_trap_01_a_tool_that_raises_ends_in_a_result_and_not_in_a_hang(in_team: bool) -> None:
    rm = manager()
    agent = rm.attach(_calls_work(workbench=_Raising(), max_tool_iterations=2))
    runner = team_of(agent) if in_team else agent
    (result,) = _results(run_async(lambda: runner.run(task="go")).messages)
    assert result.is_error
    assert "no such record" in result.content
    assert running(rm, "tools") == 0


def test_trap_01_a_call_that_is_not_admitted_ends_in_a_result() -> None:
    rm = manager(tools=1)
    agent = rm.attach(_calls_work([tool_of(_Work().sync)], max_tool_iterations=2), wait_max=0.0)
    lease = rm.try_lease(kind="tool")
    assert lease is not None
    (result,) = _results(run_async(lambda: agent.run(task="go")).messages)
    lease.release()
    assert result.is_error
    assert "may wait 0 s" in result.content


class _Work:
    """A tool that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), 0

    def sync(self) -> str:
        self.begun.set()
        self.go.wait(PATIENCE_S)
        self.ended += 1
        return "late"

    async def wait(self) -> str:
        self.begun.set()
        await come(self.go.is_set)
        self.ended += 1
        return "late"


@pytest.mark.parametrize("kind", ["sync", "wait"])
@pytest.mark.parametrize("in_team", [False, True])
def test_trap_02_a_token_that_is_cancelled_while_a_tool_runs_ends_the_run(in_team: bool, kind: str) -> None:
    rm, work, token = manager(), _Work(), CancellationToken()
    agent = rm.attach(_calls_work([tool_of(getattr(work, kind), "work")]))
    runner = team_of(agent) if in_team else agent

    async def main() -> Any:
        task = asyncio.create_task(runner.run(task="go", cancellation_token=token))
        await come(work.begun.is_set)
        token.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        assert done, "the run hangs"
        return task

    task = run_async(main)
    if not in_team:
        (result,) = _results(task.result().messages)
        assert result.is_error
        assert "cancelled" in result.content
    statistics = rm.statistics().pools["tools"]
    assert statistics.in_use == 0
    assert statistics.zombies == (1 if kind == "sync" else 0), "a thread goes on and is counted"
    work.go.set()


def test_trap_02_a_token_that_is_cancelled_takes_a_tool_call_out_of_the_queue() -> None:
    rm, work, token = manager(tools=1), _Work(), CancellationToken()
    workbench = rm.attach(workbench_of(tool_of(work.wait, "work")))

    async def main() -> ToolResult:
        first = asyncio.create_task(workbench.call_tool("work"))
        await come(work.begun.is_set)
        second = asyncio.create_task(workbench.call_tool("work", cancellation_token=token))
        await come(lambda: rm.statistics().waiting == 1)
        token.cancel()
        result = await second
        assert rm.statistics().waiting == 0
        work.go.set()
        assert (await first).to_text() == "late"
        return result

    assert run_async(main).is_error
    assert work.ended == 1


def test_trap_02_a_task_that_is_cancelled_itself_stays_cancelled() -> None:
    rm, work = manager(), _Work()
    workbench = rm.attach(workbench_of(tool_of(work.wait, "work")))

    async def main() -> None:
        task = asyncio.create_task(workbench.call_tool("work"))
        await come(work.begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await come(lambda: running(rm, "tools") == 0)

    run_async(main)
    assert work.ended == 0


def test_trap_03_a_team_whose_model_hangs_ends_without_being_cancelled() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "recover": 0})
    provider = Provider(Hang())
    team = rm.attach(team_of(agent_of(Client(provider))))

    async def main() -> BaseException | None:
        task = asyncio.create_task(team.run(task="go"))
        await come(lambda: provider.open == 1)
        clock.advance(32)
        await asyncio.wait({task}, timeout=PATIENCE_S)
        return task.exception()

    error = run_async(main)
    assert isinstance(error, RuntimeError), "of which the team makes text"
    assert "IdleTimeout" in str(error)
    assert running(rm) == 0


def test_trap_03_what_a_cancelled_team_leaves_behind_is_reaped_and_a_token_leaves_nothing() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1, "recover": 0})
    provider = Provider(Hang(), Hang())
    team = rm.attach(team_of(agent_of(Client(provider))))

    async def cancelled() -> None:
        task = asyncio.create_task(team.run(task="go"))
        await come(lambda: provider.open == 1)
        cancels = 0
        while not task.done():
            cancels += task.cancel()
            await asyncio.sleep(0.001)
        assert cancels >= 2, "AutoGen's own; docs/autogen.md says to use a token"
        assert running(rm) == 1, "its runtime goes on with the call"
        clock.advance(32)
        await come(lambda: running(rm) == 0)

    async def by_token() -> None:
        token, team = CancellationToken(), rm.attach(team_of(agent_of(Client(provider))))
        task = asyncio.create_task(team.run(task="go", cancellation_token=token))
        await come(lambda: provider.open == 1)
        token.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled() or task.exception()
        assert running(rm) == 0

    run_async(cancelled)
    run_async(by_token)


def test_trap_04_a_tool_left_behind_by_a_cancelled_agent_keeps_its_lane_until_its_run_limit() -> None:
    clock, work = agentrm.VirtualClock(), _Work()
    rm = manager(tools=1, clock=clock, reaper={"run_s": 10, "sweep_s": 1})
    agent = rm.attach(_calls_work([tool_of(work.wait, "work")]))

    async def main() -> None:
        task = asyncio.create_task(agent.run(task="go"))
        await come(work.begun.is_set)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert running(rm, "tools") == 1, "the orphan still runs, so it counts"
        clock.advance(12)
        await come(lambda: running(rm, "tools") == 0)

    run_async(main)
    assert work.ended == 0, "it was interrupted"


@pytest.mark.parametrize("kind", [StaticStreamWorkbench, StaticWorkbench])
def test_trap_05_the_events_of_an_agent_inside_a_tool_reach_the_stream(kind: type) -> None:
    rm = manager(1, tools=1)
    inner = agent_of(Scripted("deep thought"), name="inner")
    outer = rm.attach(
        agent_of(
            Scripted(calling("inner", arguments='{"task": "think"}'), "done"),
            workbench=kind([AgentTool(inner)]),
            name="outer",
        )
    )
    assert isinstance(outer._workbench[0], StaticStreamWorkbench)

    async def main() -> list[Any]:
        return [message async for message in outer.run_stream(task="go")]

    sources = [getattr(message, "source", None) for message in run_async(main)]
    assert ("inner" in sources) == (kind is StaticStreamWorkbench), "a workbench that does not stream still does not"


def test_trap_06_a_handoff_needs_no_lane() -> None:
    rm = manager(tools=1)
    agent = rm.attach(agent_of(Scripted(calling("transfer_to_bob")), handoffs=["bob"]))
    message = run_async(lambda: agent.run(task="go")).messages[-1]
    assert isinstance(message, HandoffMessage)
    assert (granted(rm), granted(rm, "tools")) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["agent", "team"])
def test_trap_13_agents_in_tools_of_agents_end_at_one_lane(kind: str, stream: bool) -> None:
    rm = manager(1, tools=1)

    async def look() -> str:
        return "a colour"

    innermost = agent_of(
        Scripted(calling("look"), "deep"),
        [tool_of(look, "look")],
        name="innermost",
        model_client_stream=stream,
        max_tool_iterations=2,
    )
    arguments = '{"task": "think"}'
    middle = agent_of(
        Scripted(calling("innermost", arguments=arguments), "middle"),
        [AgentTool(innermost)],
        name="middle",
        model_client_stream=stream,
        max_tool_iterations=2,
    )
    tool = AgentTool(middle) if kind == "agent" else TeamTool(team_of(middle, turns=5), "middle", "thinks")
    outer = rm.attach(
        agent_of(
            Scripted(calling("middle", arguments=arguments), "done"),
            [tool],
            name="outer",
            model_client_stream=stream,
            max_tool_iterations=2,
        )
    )
    result = run_async(lambda: outer.run(task="go"))
    assert result.messages[-1].content == "done"
    assert "middle" in str(_results(result.messages)[-1].content)
    assert granted(rm) >= 6, "two calls of each agent"
    assert (running(rm), running(rm, "tools")) == (0, 0)
