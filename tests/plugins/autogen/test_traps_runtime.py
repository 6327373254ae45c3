"""Traps 7, 8, 11, 12 and 14 of AutoGen: lost contexts, shared runtimes, running teams, hidden clients, saved
components."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import TeamTool
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import StaticStreamWorkbench, Workbench

import agentrm
from agentrm.adapters.conformance.provider import Provider, Reply
from agentrm_autogen import GatedClient, GatedWorkbench, loading
from tests.plugins.autogen.scenes import (
    ASK,
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

_variable: ContextVar[str] = ContextVar("autogen_test", default="unset")


def test_trap_07_a_sync_tool_sees_the_callers_context_and_no_thread_of_the_loop() -> None:
    rm, seen = manager(), list[Any]()

    def look() -> str:
        seen.append((_variable.get(), agentrm.current_lease() is not None, threading.current_thread().name))
        return "seen"

    workbench = rm.attach(workbench_of(tool_of(look, "look")))

    async def main() -> None:
        _variable.set("the caller's")
        await workbench.call_tool("look")

    run_async(main)
    ((variable, leased, thread),) = seen
    assert (variable, leased) == ("the caller's", True)
    assert "asyncio" not in thread


def test_trap_07_a_runtime_started_earlier_does_not_lose_who_asks_nor_the_enclosing_lease() -> None:
    """At one lane for tools: the inner team's tool can only run on the lease of the tool that runs the team."""
    rm, who = manager(1, tools=1), list[Any]()

    async def look() -> str:
        who.append(rm.snapshot().holding)
        return "a colour"

    async def main() -> str:
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        inner = agent_of(
            Scripted(calling("look"), "deep"), [tool_of(look, "look")], name="inner", max_tool_iterations=2
        )
        tool = TeamTool(team_of(inner, turns=5, runtime=runtime), "think", "thinks")
        outer = agent_of(
            Scripted(calling("think", arguments='{"task": "think"}'), "done"),
            [tool],
            name="outer",
            max_tool_iterations=2,
        )
        rm.attach(outer)
        with agentrm.identity(tenant="research", priority="background"):
            result = await outer.run(task="go")
        await runtime.stop()
        return result.messages[-1].content

    assert run_async(main) == "done"
    assert {holder.tenant for holder in who[0]} == {"research"}
    assert (running(rm), running(rm, "tools")) == (0, 0)


def test_trap_08_a_team_that_waits_does_not_hold_up_others_on_its_runtime() -> None:
    """An intervention handler would: the runtime has one loop for all. The gate sits in the clients instead."""
    rm = manager(pools={"slow": {"lanes": 1}})

    async def main() -> None:
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        provider = Provider(Reply(holds=True), Reply(holds=True))
        waiting = [
            rm.attach(team_of(agent_of(Client(provider), name=f"slow{i}"), turns=2, runtime=runtime), pool="slow")
            for i in range(2)
        ]
        quick = rm.attach(team_of(agent_of(Scripted("quick")), turns=2, runtime=runtime))
        tasks = [asyncio.create_task(team.run(task="go")) for team in waiting]
        await come(lambda: rm.statistics().waiting == 1)
        assert (await quick.run(task="go")).messages[-1].content == "quick"
        assert not any(task.done() for task in tasks)
        provider.release()
        await asyncio.gather(*tasks)
        await runtime.stop()

    run_async(main)
    assert running(rm, "slow") == 0


def _clients(*holders: Any) -> list[ChatCompletionClient]:
    return [x for holder in holders for x in vars(holder).values() if isinstance(x, ChatCompletionClient)]


def test_trap_12_every_client_inside_a_team_or_an_agent_is_gated() -> None:
    rm = manager()
    client = Scripted("said")
    first, second = agent_of(client, name="first"), agent_of(client, name="second")
    teams: dict[str, Any] = {
        "selector": SelectorGroupChat([first, second], client, termination_condition=MaxMessageTermination(2)),
        "magentic": MagenticOneGroupChat([first, second], client),
        "society": SocietyOfMindAgent("society", team_of(first, second), client),
        "coder": CodeExecutorAgent("coder", code_executor=_NoExecutor(), model_client=client),
    }
    for name, team in teams.items():
        assert rm.attach(team) is team, "a container is changed in place"
        inside = [*_clients(team), *_clients(first)]
        assert len(inside) == 2, name
        assert all(isinstance(x, GatedClient) for x in inside), name
    assert isinstance(first._workbench[0], GatedWorkbench)
    assert not isinstance(first._model_client.client, GatedClient), "gated once, however often it was attached"
    assert (first._model_client.gate.named.agent, second._model_client.gate.named.agent) == ("first", "second")
    run_async(lambda: first.run(task="go"))
    assert granted(rm) == 1


class _NoExecutor:
    """Stands where a code executor does; nothing is executed here."""


def test_trap_12_in_a_team_each_agent_asks_in_its_own_name_and_all_are_one_session() -> None:
    rm = manager()
    provider = Provider(probe=lambda: rm.snapshot().holding[0].agent)
    team = rm.attach(team_of(*[agent_of(Client(provider), name=name) for name in ("planner", "booker")], turns=3))
    run_async(lambda: team.run(task="go"))
    assert provider.seen == ["planner", "booker"]
    sessions = {agent._model_client.gate.named.session for agent in team._participants}
    assert sessions == {team._team_id}


# --- 14: components ---


def test_trap_14_an_agent_is_dumped_and_loaded_with_its_gates_by_the_managers_name() -> None:
    rm = agentrm.ResourceManager(name="main")
    agent = rm.attach(
        AssistantAgent("worker", _replay("said"), tools=[tool_of(_look, "look")]), priority="background", run_s=5.0
    )
    dumped = agent.dump_component().model_dump_json()
    assert "agentrm_autogen.GatedClient" in dumped
    assert "agentrm_autogen.GatedWorkbench" in dumped
    other = agentrm.ResourceManager(name="other")
    elsewhere = agentrm.ResourceManager(name="main")
    with loading(other, elsewhere), pytest.warns(UserWarning, match="SECURITY"):
        loaded = AssistantAgent.load_component(agent.dump_component())
    gate = loaded._model_client.gate
    assert gate.rm is elsewhere
    assert (gate.arguments.priority, gate.named.agent, gate.options) == ("background", "worker", {"run_s": 5.0})
    assert isinstance(loaded._workbench[0], StaticStreamWorkbench)
    run_async(lambda: loaded.run(task="go"))
    assert (granted(elsewhere), granted(rm)) == (1, 0)


def _look() -> str:
    return "a colour"


def _replay(*says: str) -> ChatCompletionClient:
    from autogen_ext.models.replay import ReplayChatCompletionClient

    pytest.importorskip("autogen_ext")
    return ReplayChatCompletionClient(list(says), model_info=Scripted().model_info)


def test_trap_14_a_component_whose_manager_is_not_there_says_what_to_write() -> None:
    config = agentrm.ResourceManager(name="main").attach(_replay("said")).dump_component()
    with pytest.raises(agentrm.ConfigError, match=r"with agentrm_autogen\.loading\(rm\)"):
        ChatCompletionClient.load_component(config)
    with loading(agentrm.ResourceManager(name="other")), pytest.raises(agentrm.ConfigError, match="'main'.*'other'"):
        ChatCompletionClient.load_component(config)


def test_trap_14_a_team_and_a_workbench_come_back_gated() -> None:
    rm = agentrm.ResourceManager(name="main")
    team = rm.attach(RoundRobinGroupChat([agent_of(_replay("said"))], termination_condition=MaxMessageTermination(2)))
    workbench = rm.attach(workbench_of())
    with loading(rm):
        again = RoundRobinGroupChat.load_component(team.dump_component())
        bench = Workbench.load_component(workbench.dump_component())
    assert isinstance(again._participants[0]._model_client, GatedClient)
    assert isinstance(bench, GatedWorkbench)
    run_async(lambda: again.run(task="go"))
    assert granted(rm) == 1


def test_trap_14_a_gated_client_is_the_clients_equal_in_everything_else() -> None:
    rm, client = manager(), Scripted("said")
    gated = rm.attach(client)
    assert gated.model_info == client.model_info
    assert gated.count_tokens(ASK) == client.count_tokens(ASK)
    assert gated.says == client.says
    assert gated.client is client
    with pytest.raises(AttributeError):
        _ = gated.no_such_thing


def test_a_team_that_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone() -> None:
    old, new = manager(), manager()
    worker = agent_of(Scripted(calling("work"), "done"), tools=[tool_of(lambda: "worked")])
    team = old.attach(RoundRobinGroupChat([worker], max_turns=1))
    old.close()
    result = run_async(lambda: new.attach(team).run(task="go"))
    assert result.messages[-1].to_text() in ("done", "worked")
    assert granted(new) >= 1 and granted(new, "tools") == 1
    assert granted(old) == 0
