"""`rm.attach` for whatever a user of CrewAI has: each slot that holds an LLM or a tool, and what stays as it was."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from crewai import Agent, Crew, Memory, PlanningConfig, Process, Task
from crewai.flow.flow import Flow, listen, start
from crewai.llms.base_llm import BaseLLM
from crewai.tools.base_tool import BaseTool

import agentrm
from agentrm.adapters import AttachError
from agentrm.adapters.copies import gate_of
from agentrm.errors import ConfigError
from agentrm_crewai import gate_llm
from agentrm_crewai.pacing import Pace
from tests.plugins.crewai.scenes import (
    Provider,
    StubLLM,
    Work,
    agent_of,
    calling,
    crew_of,
    granted,
    manager,
    run_async,
    running,
)


def parts_of(x: Any, seen: set[int] | None = None) -> list[Any]:
    """Every LLM and tool that can be reached from `x`, by brute force."""
    seen = set() if seen is None else seen
    if id(x) in seen or isinstance(x, (str, bytes, int, float, type(None), type)):
        return []
    seen.add(id(x))
    found = [x] if isinstance(x, (BaseLLM, BaseTool)) else []
    inner: list[Any] = []
    if isinstance(x, dict):
        inner = list(x.values())
    elif isinstance(x, (list, tuple, set, frozenset)):
        inner = list(x)
    elif type(x).__module__.partition(".")[0] in ("crewai", "tests"):
        inner = [*getattr(x, "__dict__", {}).values(), *(getattr(x, "__pydantic_private__", None) or {}).values()]
    return found + [part for value in inner for part in parts_of(value, seen)]


def stub(name: str) -> StubLLM:
    return StubLLM(source=Provider(), model=name)


def everything(memory: Any) -> Crew:
    """A crew with something in every slot."""
    agent = agent_of(
        stub("agent"),
        [Work(name="tool", fn=lambda: "")],
        function_calling_llm=stub("functions"),
        planning_config=PlanningConfig(llm=stub("plan")),
        guardrail="be kind",
        allow_delegation=True,
    )
    task = Task(
        description="d",
        expected_output="e",
        agent=agent,
        tools=[Work(name="task tool", fn=lambda: "")],
        guardrail="be brief",
    )
    return Crew(
        agents=[agent],
        tasks=[task],
        memory=memory,
        process=Process.hierarchical,
        manager_agent=agent_of(stub("manager agent"), role="manager"),
        manager_llm=stub("manager"),
        planning_llm=stub("planner"),
        chat_llm=stub("chat"),
    )


def test_trap_13_every_slot_of_a_crew_is_gated() -> None:
    class Storage:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    memory = Memory(llm=stub("memory"), storage=Storage(), embedder=lambda texts: [[0.0] for _ in texts])
    rm, crew = manager(), everything(memory)
    before = parts_of(crew)
    names = {part.model for part in before if isinstance(part, BaseLLM)}
    assert {"agent", "functions", "plan", "manager agent", "manager", "planner", "chat", "memory"} <= names
    assert rm.attach(crew) is crew
    after = parts_of(crew)
    assert {part.model for part in after if isinstance(part, BaseLLM)} == names
    assert [part for part in after if gate_of(part) is None] == []
    assert all(gate_of(part) is None for part in before), "the user's own LLMs and tools are as they were"
    llm = crew.tasks[0]._guardrail.llm
    assert gate_of(llm) is not None and llm is crew.agents[0].llm, "one LLM stays one"


def test_trap_13_a_models_name_is_an_llm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    crew = crew_of(agent_of("gpt-4o"), planning=True, chat_llm="gpt-4o-mini", memory=Memory(embedder=len))
    manager().attach(crew)
    llms = [crew.agents[0].llm, crew.planning_llm, crew.chat_llm, crew.memory._llm]
    assert [gate_of(llm) is not None for llm in llms] == [True] * 4


def test_trap_13_what_a_crew_makes_when_it_runs_is_gated_too() -> None:
    rm, provider = manager(1, tools=1), Provider()
    boss = StubLLM(source=provider, says=[calling("delegate_work_to_coworker", **TO_WORKER), "boss"])
    crew = crew_of(agent_of(StubLLM(source=provider)), process=Process.hierarchical, manager_llm=boss)
    crew.tasks[0].agent = None
    assert rm.attach(crew).kickoff().raw == "boss"
    assert (granted(rm), granted(rm, "tools")) == (3, 1), "the tool for delegation is a tool"
    assert (running(rm), running(rm, "tools")) == (0, 0)


TO_WORKER = {"task": "work", "context": "none", "coworker": "worker"}


@pytest.mark.parametrize("way", ["kickoff_for_each", "akickoff_for_each"])
def test_copies_of_a_crew_are_gated(way: str) -> None:
    rm, provider = manager(), Provider()
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider)), max_rpm=1000, chat_llm=stub("chat")))
    copy = crew.copy()
    assert all(gate_of(part) is not None for part in parts_of(copy))
    assert isinstance(copy._rpm_controller, Pace)
    inputs = [{"n": str(i)} for i in range(3)]
    outputs = crew.kickoff_for_each(inputs) if way == "kickoff_for_each" else run_async(lambda: getattr(crew, way)(inputs))
    assert [output.raw for output in outputs] == ["one two three"] * 3
    assert provider.calls == granted(rm) == 3


def test_an_agent_alone_is_gated_in_every_way_to_start_it() -> None:
    rm, provider = manager(tools=1), Provider()
    llm = StubLLM(source=provider, says=[calling("work"), "done"] * 3)
    agent = rm.attach(agent_of(llm, [Work(fn=lambda: "worked")]))
    assert agent.kickoff("hello").raw == "done"
    llm_of_agent = agent.llm
    llm_of_agent.heard.clear()
    assert run_async(lambda: agent.kickoff_async("hello")).raw == "done"
    assert granted(rm) == provider.calls == 4
    assert granted(rm, "tools") == 2


def test_a_flow_is_walked_and_its_steps_take_no_thread_of_the_loop() -> None:
    import threading

    threads: list[str] = []

    class Two(Flow):  # type: ignore[type-arg]
        @start()
        def first(self) -> str:
            threads.append(threading.current_thread().name)
            return self.llm.call("hello")

        @listen(first)
        async def second(self, said: str) -> str:
            return said + await self.llm.acall("hello")

    rm, provider = manager(), Provider()
    flow = Two()
    flow.llm = StubLLM(source=provider)
    flow.agents = {"one": agent_of(StubLLM(source=provider))}
    assert rm.attach(flow) is flow
    assert flow.kickoff() == "one two threeone two three"
    assert granted(rm) == provider.calls == 2
    assert gate_of(flow.agents["one"]) is not None
    assert threads == ["agentrm-work"]


def test_a_streaming_crew_gives_its_chunks_and_holds_one_lane_for_each_call() -> None:
    rm, provider = manager(), Provider()
    crew = rm.attach(crew_of(agent_of(StubLLM(source=provider)), stream=True))
    assert "".join(chunk.content for chunk in crew.kickoff()) == "one two three"
    assert (granted(rm), running(rm), provider.calls) == (1, 0, 1)


def test_who_asks_is_found_in_this_order() -> None:
    seen: list[Any] = []

    def ask() -> tuple[str, str, str]:
        from agentrm.scheduling.lease import current_lease

        lease = current_lease()
        assert lease is not None
        return lease.agent, lease.tenant, lease.priority

    rm, provider = manager(), Provider(probe=ask)
    agent = agent_of(StubLLM(source=provider), role="clerk")
    crew = rm.attach(crew_of(agent))
    crew.kickoff()
    with agentrm.identity(agent="named", tenant="research", priority="background"):
        crew.kickoff()
        rm.attach(crew, agent="argued").kickoff()
    seen = provider.seen
    assert seen == [
        ("clerk", "default", "interactive"),
        ("named", "research", "background"),
        ("argued", "research", "background"),
    ]


def test_the_users_own_objects_stay_what_they_are() -> None:
    rm = manager()
    llm, tool = stub("mine"), Work(fn=lambda: "")
    gated, gated_tool = rm.attach([llm, tool])
    assert type(llm) is StubLLM and isinstance(gated, StubLLM) and type(gated).__name__ == "StubLLM"
    assert gated.to_config_dict() == llm.to_config_dict()
    assert gated_tool.tool_type == tool.tool_type and gated_tool.args_schema is tool.args_schema
    assert gate_of(rm.attach(gated))[0] is gate_of(gated)[0], "attached twice is gated once"


def test_what_can_not_be_attached_says_what_to_write() -> None:
    rm = manager()
    with pytest.raises(AttachError, match="rm.attach\\(crew\\)"):
        rm.attach(Task(description="d", expected_output="e"))
    with pytest.raises(ConfigError, match="gate_llm.lanes"):
        gate_llm(rm, stub("x"), lanes=2)
    assert isinstance(gate_llm(rm, stub("x"), agent="a"), BaseLLM)
    assert issubclass(Agent, object)


def test_our_own_part_of_the_import_is_light() -> None:
    code = "import sys, agentrm_crewai, agentrm_crewai.attaching; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"crewai", "pydantic", "openai"} & set(done.stdout.split())


def test_a_crew_that_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone() -> None:
    old, new = manager(), manager()
    llm = StubLLM(source=Provider(), says=[calling("work"), "done"])
    crew = old.attach(crew_of(agent_of(llm, [Work(fn=lambda: "worked")]), max_rpm=100))
    old.close()
    new.attach(crew)
    assert crew.agents[0]._rpm_controller._rm is new
    assert crew.kickoff().raw == "done"
    assert (granted(new), granted(new, "tools"), granted(old)) == (2, 1, 0)
