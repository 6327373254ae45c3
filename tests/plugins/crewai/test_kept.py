"""Trap 11, and crews that outlive their process: steps done are kept, side effects happen once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from crewai import Crew
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.flow import Flow, listen, start
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import tool as make_tool

from agentrm.adapters import AttachError
from agentrm.adapters.copies import gate_of
from agentrm.context.sessions import SessionStore
from agentrm_crewai import keep_in
from tests.plugins.crewai.scenes import Provider, StubLLM, Work, agent_of, calling, crew_of, granted, manager

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@make_tool
def book(what: str) -> str:
    """Books something."""
    done.append(what)
    return f"booked {what}"


class Stop(Exception):
    """The process ends here."""


def crew_that_books(says: list[Any], *, tasks: int = 2) -> Crew:
    agent = agent_of(StubLLM(source=Provider(), says=says, api_key="secret-key"), [book], max_retry_limit=0)
    return crew_of(agent, tasks=tasks)


def stopping(says: list[Any]) -> list[Any]:
    """As `says`, then the process ends."""

    class Says(list):  # type: ignore[type-arg]
        def __getitem__(self, place: Any) -> Any:
            if place >= len(says):
                raise Stop
            return says[place]

        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Any:
            return iter(says)

    return Says()


def first_life(session: Any, rm: Any, says: list[Any]) -> None:
    crew = crew_that_books([])
    crew.agents[0].llm.says = stopping(says)
    with pytest.raises(Stop):
        keep_in(session, rm.attach(crew)).kickoff()


def test_trap_11_a_restored_crew_is_gated_and_has_its_own_llm_again(tmp_path: Path) -> None:
    """CrewAI writes an LLM of your own as plain settings, and can't write a tool of `@tool` at all."""
    config = CheckpointConfig(location=str(tmp_path / "checkpoints"))
    rm = manager()
    crew = rm.attach(crew_that_books([calling("book", what="a flight"), "one", "two"]))
    crew.kickoff(from_checkpoint=config)
    crewai_event_bus.flush()
    newest = max((tmp_path / "checkpoints" / "main").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    rm = manager()
    crew = rm.attach(crew_that_books(["never asked"]))
    restored = type(crew).from_checkpoint(CheckpointConfig(restore_from=newest))
    assert [task.output.raw for task in restored.tasks] == ["one", "two"]
    agent = restored.agents[0]
    assert isinstance(agent.llm, StubLLM) and gate_of(agent.llm)[0].rm is rm
    assert restored.tasks[0].agent is agent
    assert [gate_of(tool) is not None and tool.run(what="x") for tool in agent.tools] == ["booked x"]
    assert gate_of(restored) is not None


def test_trap_11_a_checkpoint_that_nobody_attached_says_what_is_missing(tmp_path: Path) -> None:
    crew = manager().attach(crew_that_books(["one", "two"]))
    crew.kickoff(from_checkpoint=CheckpointConfig(location=str(tmp_path)))
    crewai_event_bus.flush()
    newest = max((tmp_path / "main").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    data = json.loads(newest.read_text())
    (tool,) = data["entities"][0]["agents"][0]["tools"]
    from agentrm_crewai.tools import StoredTool

    with pytest.raises(RuntimeError, match="rm.attach"):
        StoredTool(**{name: tool[name] for name in ("name", "description")}).run()


def test_steps_done_are_kept_and_side_effects_happen_once(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = store.open("trip")
    first_life(session, manager(), [calling("book", what="a flight"), "flight booked", calling("book", what="a room")])
    assert done == ["a flight", "a room"]
    session.close()

    rm = manager()
    with store.open("trip") as session:
        says = [calling("book", what="a room"), "room booked"]
        crew = keep_in(session, rm.attach(crew_that_books(says)))
        assert crew.tasks[0].output.raw == "flight booked"
        assert crew.kickoff().raw == "room booked"
    assert done == ["a flight", "a room"], "the answer came out of the log"
    assert granted(rm) == 2
    assert granted(rm, "tools") == 0, "and took no lane"


def test_a_crew_sleeps_in_one_file_and_goes_on_elsewhere(tmp_path: Path) -> None:
    here, there = SessionStore(tmp_path / "here"), SessionStore(tmp_path / "there")
    session = here.open("trip")
    first_life(session, manager(), [calling("book", what="a flight"), "flight booked"])
    file = session.hibernate()
    assert b"secret-key" not in Path(file).read_bytes()
    with there.restore(file) as session:
        crew = keep_in(session, manager().attach(crew_that_books(["walked instead"])))
        crew.tasks[1].description = "The plan changed: walk."
        assert crew.kickoff().raw == "walked instead"
        assert [task.output.raw for task in crew.tasks] == ["flight booked", "walked instead"]
    assert done == ["a flight"]


def test_a_tool_that_did_not_end_is_not_run_again_unless_it_is_safe(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def dies() -> str:
        done.append("began")
        raise Killed

    def life(fn: Any, **more: Any) -> str:
        llm = StubLLM(source=Provider(), says=[calling("work"), "done"])
        with SessionStore(tmp_path).open("trip") as session:
            crew = keep_in(session, manager().attach(crew_of(agent_of(llm, [Work(fn=fn)]))), **more)
            crew.kickoff()
            (answer,) = [m["content"] for m in crew.agents[0].llm.heard[-1] if m["role"] == "tool"]
            return str(answer)

    session = SessionStore(tmp_path).open("trip")
    name = started_by(session, dies)
    session.close()
    answer = life(lambda: done.append("again"))
    assert "again" not in done and "unknown" in answer.lower(), (name, answer)


def started_by(session: Any, fn: Any) -> str:
    """A log in which the call began, as a kill leaves it."""
    from agentrm_crewai import once

    names: list[str] = []
    llm = StubLLM(source=Provider(), says=[calling("work"), "done"])
    crew = keep_in(session, manager().attach(crew_of(agent_of(llm, [Work(fn=lambda: "")]))))
    log = gate_of(crew)[0].log
    assert isinstance(log, once.CallLog)
    log._end = lambda name, tool, result: names.append(name)  # type: ignore[method-assign]
    gate_of(crew)[0].keep = None
    crew.kickoff()
    (name,) = names
    return name


def test_a_task_that_the_agent_runs_again_repeats_no_side_effect(tmp_path: Path) -> None:
    failures = [RuntimeError("mine")]

    class Flaky(StubLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if failures and any(message["role"] == "tool" for message in messages):
                raise failures.pop()
            return super().call(messages, *args, **kwargs)

    llm = Flaky(source=Provider(), says=[calling("book", what="x"), calling("book", what="x"), "done"])
    with SessionStore(tmp_path).open("trip") as session:
        crew = keep_in(session, manager().attach(crew_of(agent_of(llm, [book]))))
        assert crew.kickoff().raw == "done"
    assert done == ["x"]


def test_the_same_call_twice_in_one_run_is_two_calls(tmp_path: Path) -> None:
    says = [calling("book", what="x"), calling("book", what="x"), "done"]
    with SessionStore(tmp_path).open("trip") as session:
        keep_in(session, manager().attach(crew_that_books(says, tasks=1))).kickoff()
    assert done == ["x", "x"]


def test_a_crew_that_is_attached_again_is_kept_as_before(tmp_path: Path) -> None:
    rm = manager()
    with SessionStore(tmp_path).open("s") as session:
        crew = keep_in(session, rm.attach(crew_that_books([calling(book, what="a"), "fine", "fine"])))
        gate, _ = gate_of(crew) or (None, None)
        again, _ = gate_of(rm.attach(crew, priority="background")) or (None, None)
    assert again is not gate and gate.log is not None
    assert (again.log, again.keep) == (gate.log, gate.keep)


def test_a_tool_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    def fails() -> str:
        done.append("tried")
        raise ValueError("not now")

    for _ in range(2):
        llm = StubLLM(source=Provider(), says=[calling("work"), "done"])
        with SessionStore(tmp_path).open("trip") as session:
            crew = keep_in(session, manager().attach(crew_of(agent_of(llm, [Work(fn=fails)]))))
            gate_of(crew)[0].keep = None  # only the log outlives it
            crew.kickoff()
    assert done == ["tried", "tried"]


def test_a_flow_goes_on_after_the_method_that_was_done(tmp_path: Path) -> None:
    class Two(Flow):  # type: ignore[type-arg]
        @start()
        def first(self) -> str:
            done.append("first")
            return "one"

        @listen(first)
        def second(self, said: str) -> str:
            done.append("second")
            if done.count("second") == 1:
                raise Stop
            return f"{said} two"

    with SessionStore(tmp_path).open("trip") as session:
        flow = keep_in(session, manager().attach(Two()))
        with pytest.raises(Stop):
            flow.kickoff()
    with SessionStore(tmp_path).open("trip") as session:
        assert keep_in(session, manager().attach(Two())).kickoff() == "one two"
    assert done == ["first", "second", "second"]


def test_only_what_is_attached_is_kept(tmp_path: Path) -> None:
    agent = manager().attach(agent_of(StubLLM(source=Provider())))
    with SessionStore(tmp_path).open("trip") as session:
        for x, instead in ((crew_that_books([]), "rm.attach"), (agent, r"Crew\(agents=\[agent\]")):
            with pytest.raises(AttachError, match=rf"keep_in\(session, .*{instead}"):
                keep_in(session, x)


def test_a_killed_process_leaves_a_crew_that_goes_on(tmp_path: Path) -> None:
    """Real SIGKILL in the middle of the second task."""
    program = Path(__file__).with_name("killed_crew.py")
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def life() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    first, second = life(), life()
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.returncode == 0, second.stderr
    assert "room: " in second.stdout and "unknown" in second.stdout.lower()
    assert (tmp_path / "booked").read_text().split() == ["flight", "room"]
