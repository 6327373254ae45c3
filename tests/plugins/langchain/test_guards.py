"""Guards and the pressure note in real agents: circles end with a clear error, everything else is left alone."""

from __future__ import annotations

import itertools
import threading
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt

import agentrm
from agentrm.adapters.conformance.harness import Threads, until
from agentrm.limits.errors import LoopDetected
from agentrm.limits.guards import current_guards
from agentrm_langchain import AgentRMMiddleware, tool_node
from tests.plugins.langchain.scenes import HELLO, Scripted, agent_of, calling, granted, manager, run_async, tool_of

_ids = itertools.count()


def asking(name: str = "work", **args: Any) -> AIMessage:
    """One call of a tool, with an id of its own as a provider would give."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"id-{next(_ids)}", "type": "tool_call"}])


class Insistent(Scripted):
    """Makes the same call again and again, with a new id each time."""

    says: list[AIMessage] = []
    args: dict[str, Any] = {}
    tool: str = "work"

    def _next(self, messages: Any) -> Any:
        self.says = [*self.says, asking(self.tool, **self.args)]
        return super()._next(messages)


WAYS = ("invoke", "ainvoke")


def run(agent: Any, way: str, given: Any = HELLO, **more: Any) -> Any:
    return agent.invoke(given, **more) if way == "invoke" else run_async(lambda: agent.ainvoke(given, **more))


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_in_a_circle_is_warned_then_stopped(way: str) -> None:
    rm, made = manager(), []

    def work(query: str, state: Annotated[Any, InjectedState], call: Annotated[str, InjectedToolCallId]) -> str:
        made.append(query)
        return "nothing found"

    model = Insistent(args={"query": "x"})
    agent = agent_of(model, [tool_of(work)], AgentRMMiddleware(rm), name="finder")
    with rm.guard(repeat=3) as guards, pytest.raises(LoopDetected, match="'finder' made work 3 times") as caught:
        run(agent, way)
    assert len(made) == 3, "the tool ran after its agent was warned"
    assert caught.value.cycle == (("finder", "work"),)
    assert "Asking again will be refused" in model.heard[-1][-1].text, "the agent never saw the warning"
    assert [event.kind for event in guards.events] == ["warning", "loop"]
    assert rm.statistics().pools["default"].in_use == 0


def test_an_agent_that_heeds_the_warning_goes_on() -> None:
    rm = manager()
    model = Scripted(says=[*(asking() for _ in range(2)), asking("other"), asking(), AIMessage("done")])
    agent = agent_of(model, [tool_of(lambda: "same"), tool_of(lambda: "new", "other")], AgentRMMiddleware(rm))
    with rm.guard(repeat=2):
        assert agent.invoke(HELLO)["messages"][-1].text == "done"


@pytest.mark.parametrize("way", WAYS)
def test_results_that_change_and_tools_that_may_be_polled_are_no_circle(way: str) -> None:
    rm, count = manager(), itertools.count()
    says = [asking(name) for name in ("moves", "status") * 8]
    tools = [tool_of(lambda: f"line {next(count)}", "moves"), tool_of(lambda: "pending", "status")]
    agent = agent_of(Scripted(says=[*says, AIMessage("done")]), tools, AgentRMMiddleware(rm))
    with rm.guard(repeat=2, polling=["status"]) as guards:
        assert run(agent, way, config={"recursion_limit": 100})["messages"][-1].text == "done"
    assert not guards.events


@pytest.mark.parametrize("way", WAYS)
def test_two_agents_that_hand_over_to_each_other_for_ever_are_stopped(way: str) -> None:
    rm = manager()

    def agent(name: str, other: str) -> Any:
        @tool(f"to_{other}")
        def hand_over(call: Annotated[str, InjectedToolCallId]) -> Command[Any]:
            """Hands the work over."""
            message = ToolMessage("over to you", tool_call_id=call)
            return Command(goto=other, graph=Command.PARENT, update={"messages": [message]})

        return agent_of(Insistent(tool=f"to_{other}"), [hand_over], AgentRMMiddleware(rm), name=name)

    graph = StateGraph(MessagesState).add_node("x", agent("x", "y")).add_node("y", agent("y", "x"))
    swarm = graph.add_edge(START, "x").compile()
    with rm.guard(agent="swarm", repeat=3), pytest.raises(LoopDetected, match="'x' and 'y' go back and forth"):
        run(swarm, way, config={"recursion_limit": 100})


def test_a_tool_that_fails_the_same_way_again_and_again_is_a_circle() -> None:
    rm = manager()

    def work() -> str:
        raise ToolException("no such table")

    failing = tool_of(work)
    failing.handle_tool_error = True
    model = Insistent()
    with rm.guard(repeat=3), pytest.raises(LoopDetected):
        agent_of(model, [failing], AgentRMMiddleware(rm)).invoke(HELLO)
    assert "no such table" in model.heard[-1][-1].text and "Asking again" in model.heard[-1][-1].text


def test_an_interrupt_for_a_person_is_no_result() -> None:
    rm = manager()

    def work() -> str:
        return "".join(interrupt("may I?") for _ in range(3))  # runs again from its beginning after each answer

    model = Scripted(says=[asking(), AIMessage("done")])
    agent = agent_of(model, [tool_of(work)], AgentRMMiddleware(rm), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    with rm.guard(repeat=2) as guards:
        agent.invoke(HELLO, config)
        for _ in range(3):
            last = agent.invoke(Command(resume="y"), config)["messages"]
    assert [message.text for message in last[-2:]] == ["yyy", "done"]
    assert not guards.events


class Provides(AgentMiddleware[Any, Any, Any]):
    """Brings a tool that the agent was not made with."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tools=[*request.tools, tool_of(lambda: "same")]))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool=tool_of(lambda: "same")))


def test_tools_that_another_middleware_brings_are_watched_too() -> None:
    rm = manager()
    with rm.guard(repeat=3), pytest.raises(LoopDetected):
        agent_of(Insistent(), [tool_of(lambda: "never", "other")], Provides(), AgentRMMiddleware(rm)).invoke(HELLO)


@pytest.mark.parametrize(
    ("result", "shown"),
    [("text", "text"), ({"n": 1}, '{"n": 1}'), (7, "7"), ([{"type": "text", "text": "block"}], "block"), (None, "null")],
    ids=str,
)
def test_the_warning_stands_behind_a_result_of_any_kind(result: Any, shown: str) -> None:
    rm, model = manager(), Scripted(says=[asking(), asking(), AIMessage("done")])
    with rm.guard(repeat=2):
        messages = agent_of(model, [tool_of(lambda: result)], AgentRMMiddleware(rm)).invoke(HELLO)["messages"]
    assert shown in messages[-2].text and "Asking again will be refused" in messages[-2].text
    assert "Asking again" not in messages[-4].text


def test_the_artifact_of_a_result_stays_as_it_is() -> None:
    @tool(response_format="content_and_artifact")
    def work() -> tuple[str, Any]:
        """works"""
        return "text", {"big": True}

    rm, model = manager(), Scripted(says=[asking(), asking(), AIMessage("done")])
    with rm.guard(repeat=2):
        last = agent_of(model, [work], AgentRMMiddleware(rm)).invoke(HELLO)["messages"][-2]
    assert last.artifact == {"big": True} and last.text.startswith("text\n\nNote:")


def test_guards_given_to_the_gate_need_no_block_and_serve_tool_nodes() -> None:
    rm = manager()
    guards = rm.guard(repeat=2)
    node = tool_node(rm, [tool_of(lambda: "same")], guards=guards)
    graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
    for _ in range(2):
        graph.invoke({"messages": [asking()]})
    with pytest.raises(LoopDetected):
        graph.invoke({"messages": [asking()]})


def test_tasks_side_by_side_have_guards_of_their_own() -> None:
    rm, start = manager(4, tools=4), threading.Barrier(4)
    outcomes: list[str] = []

    def task() -> None:
        model = Scripted(says=[asking(), asking(), AIMessage("done")])
        agent = agent_of(model, [tool_of(lambda: "same")], AgentRMMiddleware(rm))
        start.wait()
        with rm.guard(repeat=3):
            outcomes.append(agent.invoke(HELLO)["messages"][-1].text)

    threads = [threading.Thread(target=task) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["done"] * 4


def test_a_block_within_another_replaces_it_and_gives_it_back() -> None:
    rm = manager()
    with rm.guard() as outer:
        with rm.guard() as inner, outer:
            assert current_guards() is outer
        assert current_guards() is outer is not inner
    assert current_guards() is None


@pytest.mark.parametrize("way", WAYS)
def test_the_pressure_note_is_shown_while_callers_wait_and_never_kept(way: str) -> None:
    clock = agentrm.VirtualClock()
    rm = manager(1, clock=clock)
    model = Scripted(says=[calling("work"), AIMessage("done")])
    agent = agent_of(model, [tool_of(lambda: "same")], AgentRMMiddleware(rm, pressure_note=True))
    assert len(run(agent, way)["messages"]) == 4
    assert [len(heard) for heard in model.heard] == [1, 3], "a note without anything to say"

    with rm.lease():
        waiting = Threads(lambda: rm.lease(wait_max=5).acquire())
        until(rm, lambda s: s.waiting == 1, "a caller that waits")
        clock.advance(5)
        assert isinstance(waiting.outcomes()[0], agentrm.QueueTimeout)
    messages = run(agent, way)["messages"]
    note = model.heard[-1][-1]
    assert isinstance(note, HumanMessage) and "Shared resources are busy" in note.text
    assert not any("Shared resources" in message.text for message in messages)


def test_without_guards_nothing_is_watched() -> None:
    rm = manager()
    model = Scripted(says=[*(asking() for _ in range(20)), AIMessage("done")])
    agent = agent_of(model, [tool_of(lambda: "same")], AgentRMMiddleware(rm))
    assert agent.invoke(HELLO, {"recursion_limit": 100})["messages"][-1].text == "done"
    assert granted(rm) == 21
