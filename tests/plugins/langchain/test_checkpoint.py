"""The LangGraph checkpointer: LangGraph's own conformance suite, hibernation in mid-run, tool calls at most once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import agentrm
from agentrm.adapters.conformance.harness import Threads, manager
from agentrm.adapters.conformance.provider import PATIENCE_S
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import SessionStore
from agentrm.storage import Quota, QuotaExceeded, SqliteStore
from agentrm_langchain.checkpoint import SessionSaver
from agentrm_langchain.hibernation import hibernate_thread, restore_thread
from tests.plugins.langchain.thread_agent import build, transcript

AGENT = Path(__file__).with_name("thread_agent.py")


def agent_process(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, AGENT, *map(str, words)], capture_output=True, text=True, check=check)


async def test_langgraphs_conformance_suite_passes(tmp_path: Path) -> None:
    conformance = pytest.importorskip("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="SessionSaver")
    async def ours() -> AsyncIterator[SessionSaver]:
        with SessionStore(tmp_path) as store:
            yield SessionSaver(store)

    report = await conformance.validate(ours)
    failures = [line for result in report.results.values() for line in result.failures or []]
    assert failures == []
    assert all(result.detected and result.passed for result in report.results.values())
    assert report.passed_all()


class Count(TypedDict):
    n: Annotated[int, lambda a, b: a + b]
    said: list[str]


def counting(saver: Any) -> Any:
    def one(state: Count) -> dict[str, Any]:
        return {"n": 1, "said": [f"one at {state['n']}"]}

    def ask(state: Count) -> dict[str, Any]:
        return {"n": 10, "said": [str(interrupt("how much?"))]}

    graph = StateGraph(Count)
    graph.add_node("one", one)
    graph.add_node("ask", ask)
    graph.add_edge(START, "one")
    graph.add_edge("one", "ask")
    graph.add_edge("ask", END)
    return graph.compile(checkpointer=saver)


def test_history_interrupts_and_forks_are_as_with_langgraphs_own_saver(tmp_path: Path) -> None:
    told = []
    for saver in (InMemorySaver(), SessionSaver(SessionStore(tmp_path))):
        graph = counting(saver)
        config = {"configurable": {"thread_id": "a/b c"}}
        graph.invoke({"n": 0, "said": []}, config)
        waiting = graph.get_state(config)
        graph.invoke(Command(resume="much"), config)
        early = [s for s in graph.get_state_history(config) if s.values.get("n") == 1][-1]
        forked = graph.update_state(early.config, {"n": 100})
        graph.invoke(None, forked)
        told.append(
            (
                waiting.next,
                [task.interrupts[0].value for task in waiting.tasks],
                [(s.values, s.next, s.metadata["step"]) for s in graph.get_state_history(config)],
                [(s.values, s.next) for s in graph.get_state_history(config, limit=2)],
                [s.values for s in graph.get_state_history(config, filter={"source": "update"})],
            )
        )
    assert told[0] == told[1]


def test_threads_of_tenants_do_not_meet(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    counting(SessionSaver(store, tenant="a")).invoke({"n": 0}, {"configurable": {"thread_id": "t"}})
    other = SessionSaver(store, tenant="b")
    assert other.get_tuple({"configurable": {"thread_id": "t"}}) is None
    assert list(other.list(None)) == []
    assert SessionSaver(store, tenant="a").threads() == ["t"]


def test_a_quota_stops_a_thread_with_a_typed_error(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, blobs=SqliteStore(None, quotas={"*": Quota(bytes=2000)}))
    with pytest.raises(QuotaExceeded):
        counting(SessionSaver(store)).invoke({"n": 0, "said": ["x" * 3000]}, {"configurable": {"thread_id": "t"}})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("uninterrupted")
    return agent_process(root / "store", root / "effects", "run", "t").stdout


@pytest.mark.slow
def test_stopped_between_a_call_and_its_result_it_ends_as_if_it_had_not_been(
    tmp_path: Path, uninterrupted: str
) -> None:
    effects = tmp_path / "effects"
    file = agent_process(tmp_path / "here", effects, "drain", "t").stdout.strip()
    assert not effects.exists()
    held = SessionStore(tmp_path / "here").read("t")
    assert [c.id for c in held.state.pending.values()] == ["call-0"]

    resumed = agent_process(tmp_path / "there", effects, "resume", "t", file)
    assert resumed.stdout == uninterrupted
    assert effects.read_text() == "line 0\nline 1\n"


@pytest.mark.slow
def test_killed_inside_a_tool_its_side_effect_happens_once(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    killed = agent_process(tmp_path / "store", effects, "kill", "t", check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = agent_process(tmp_path / "store", effects, "resume", "t")
    assert effects.read_text() == "line 0\nline 1\n"
    assert "outcome is unknown" in resumed.stdout


def test_a_thread_goes_there_and_back_again(tmp_path: Path) -> None:
    here, there = SessionStore(tmp_path / "here"), SessionStore(tmp_path / "there")
    config: Any = {"configurable": {"thread_id": "t"}}
    build(here, tmp_path / "e").invoke({"messages": [HumanMessage("go", id="q1")]}, config)
    assert restore_thread(SessionSaver(there), hibernate_thread(SessionSaver(here), "t")) == "t"
    state = build(there, tmp_path / "e").invoke({"messages": [HumanMessage("more", id="q2")]}, config)
    assert restore_thread(SessionSaver(here), hibernate_thread(SessionSaver(there), "t")) == "t"
    back = build(here, tmp_path / "e").get_state(config)
    assert transcript(back.values) == transcript(state)
    messages = here.read("t").messages()
    assert [m.text for m in messages if m.role == "user"] == ["go", "more"]
    assert not find_breaks(messages)
    assert [hit.role for hit in here.read("t").search("more")] == ["user"]


def test_a_thread_can_be_restored_under_another_name(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "store")
    config: Any = {"configurable": {"thread_id": "t"}}
    agent = build(store, tmp_path / "e")
    agent.invoke({"messages": [HumanMessage("go", id="q1")]}, config)
    file = hibernate_thread(SessionSaver(store), "t")
    assert restore_thread(SessionSaver(store), file, as_thread="copy") == "copy"
    copied = {"configurable": {"thread_id": "copy"}}
    assert transcript(agent.get_state(copied).values) == transcript(agent.get_state(config).values)
    agent.invoke({"messages": [HumanMessage("only in the copy")]}, copied)
    assert len(agent.get_state(copied).values["messages"]) > len(agent.get_state(config).values["messages"])
    assert SessionSaver(store).threads() == ["copy", "t"]


async def test_a_cancelled_tool_has_its_result_when_the_thread_goes_on(tmp_path: Path) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from agentrm_langchain.once import OnceMiddleware
    from tests.plugins.langchain.thread_agent import ScriptedModel

    started = asyncio.Event()
    runs = []

    @tool
    async def append(line: str) -> str:
        """Appends."""
        runs.append(line)
        if line == "line 0":
            started.set()
            await asyncio.Event().wait()
        return f"appended {line}"

    store = SessionStore(tmp_path)
    agent: Any = create_agent(
        ScriptedModel(), [append], middleware=[OnceMiddleware(store)], checkpointer=SessionSaver(store)
    )
    config = {"configurable": {"thread_id": "t"}}
    task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}, config))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    state = await agent.ainvoke(None, config)
    assert runs == ["line 0", "line 1"]
    assert "cancelled" in [m.text for m in state["messages"] if m.type == "tool"][0]
    assert isinstance(state["messages"][-1], AIMessage)


def test_a_tool_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ToolRetryMiddleware
    from langchain_core.tools import tool

    from agentrm_langchain.once import OnceMiddleware
    from tests.plugins.langchain.thread_agent import ScriptedModel

    runs = []

    @tool
    def append(line: str) -> str:
        """Appends."""
        runs.append(line)
        if len(runs) == 1:
            raise ConnectionError("try again")
        return f"appended {line}"

    store = SessionStore(tmp_path)
    agent: Any = create_agent(
        ScriptedModel(),
        [append],
        middleware=[ToolRetryMiddleware(max_retries=1, initial_delay=0), OnceMiddleware(store)],
        checkpointer=SessionSaver(store),
    )
    state = agent.invoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "t"}})
    assert runs == ["line 0", "line 0", "line 1"]
    assert "done" in state["messages"][-1].text


@pytest.mark.parametrize("way", ["wrap_tool_call", "awrap_tool_call"])
async def test_a_result_that_cannot_be_written_down_is_handed_out_once(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_core.messages import ToolMessage

    from agentrm_langchain import once

    monkeypatch.setattr(once, "get_config", lambda: {"configurable": {"thread_id": "t"}})
    request: Any = SimpleNamespace(tool_call={"id": "1", "name": "book", "args": {}}, state={})
    result, made = ToolMessage("booked", tool_call_id="1", artifact=threading.Lock()), []

    def book(_: Any) -> Any:
        made.append(1)
        return result

    async def abook(_: Any) -> Any:
        return book(_)

    async def run() -> Any:
        middleware = once.OnceMiddleware(SessionStore(tmp_path))
        if way == "wrap_tool_call":
            return middleware.wrap_tool_call(request, book)
        return await middleware.awrap_tool_call(request, abook)

    assert await run() is result
    assert "outcome is unknown" in (await run()).text
    assert made == [1]


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("once_first", [True, False])
def test_a_tool_that_the_manager_gave_up_on_is_not_run_again_unless_it_is_safe(
    tmp_path: Path, once_first: bool, safe: bool
) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from agentrm_langchain import AgentRMMiddleware
    from agentrm_langchain.once import OnceMiddleware
    from tests.plugins.langchain.thread_agent import ScriptedModel

    started, released = threading.Event(), threading.Event()
    runs = []

    @tool
    def append(line: str) -> str:
        """Appends."""
        runs.append(line)
        if len(runs) == 1:
            started.set()
            assert released.wait(PATIENCE_S)
        return f"appended {line}"

    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"run_s": 30, "sweep_s": 1})
    store = SessionStore(tmp_path)
    once = OnceMiddleware(store, safe_tools=["append"] if safe else [])
    both = [once, AgentRMMiddleware(rm)]
    agent: Any = create_agent(
        ScriptedModel(),
        [append],
        middleware=both if once_first else both[::-1],
        checkpointer=SessionSaver(store),
    )
    config = {"configurable": {"thread_id": "t"}}
    caller = Threads(lambda: agent.invoke({"messages": [HumanMessage("go")]}, config))
    assert started.wait(PATIENCE_S)
    clock.advance(32)
    assert isinstance(caller.outcomes()[0], agentrm.RunTimeout)
    state = agent.invoke(None, config)
    released.set()
    assert runs == (["line 0", "line 0", "line 1"] if safe else ["line 0", "line 1"])
    answer = [m.text for m in state["messages"] if m.type == "tool"][0]
    assert answer == "appended line 0" if safe else "outcome is unknown" in answer


def test_a_tool_call_that_was_not_admitted_is_made_later(tmp_path: Path) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from agentrm_langchain import AgentRMMiddleware
    from agentrm_langchain.once import OnceMiddleware
    from tests.plugins.langchain.thread_agent import ScriptedModel

    runs = []

    @tool
    def append(line: str) -> str:
        """Appends."""
        runs.append(line)
        return f"appended {line}"

    rm, store = manager(tools=1), SessionStore(tmp_path)
    agent: Any = create_agent(
        ScriptedModel(),
        [append],
        middleware=[OnceMiddleware(store), AgentRMMiddleware(rm, models=False, wait_max=0)],
        checkpointer=SessionSaver(store),
    )
    config = {"configurable": {"thread_id": "t"}}
    held = rm.lease(kind="tool").acquire()
    (error,) = Threads(lambda: agent.invoke({"messages": [HumanMessage("go")]}, config)).outcomes()
    assert isinstance(error, agentrm.QueueTimeout)
    held.release()
    agent.invoke(None, config)
    assert runs == ["line 0", "line 1"]
