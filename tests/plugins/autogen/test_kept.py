"""Teams that outlive their process: runs that ended are kept, side effects of one that did not end happen once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_core.models import CreateResult

from agentrm.adapters import AttachError
from agentrm.context.sessions import SessionStore
from agentrm_autogen import TeamRunning, keep_in
from tests.plugins.autogen.scenes import (
    Client,
    Scripted,
    agent_of,
    calling,
    granted,
    manager,
    run_async,
    team_of,
    tool_of,
    workbench_of,
)
from tests.waiting import come

BOOK_FLIGHT = calling("book", arguments='{"what": "flight"}')


class Stop(Exception):
    """The process ends here."""


class Ending(Scripted):
    """Says what it has to say, then the process ends."""

    async def create(self, messages: Any, **more: Any) -> CreateResult:
        if len(self.heard) == len(self.says):
            raise Stop
        return await super().create(messages, **more)


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with SessionStore(tmp_path, fsync="never") as store:
        yield store


def team_that_books(rm: Any, done: list[str], client: Any, *, fails: bool = False, sync: bool = False) -> Any:
    async def book(what: str) -> str:
        return book_sync(what)

    def book_sync(what: str) -> str:
        done.append(what)
        if fails:
            raise ValueError("not now")
        return f"booked {what}"

    tool = tool_of(book_sync if sync else book, "book")
    agent = agent_of(client, workbench=workbench_of(tool), max_tool_iterations=3)
    return rm.attach(team_of(agent, turns=2))


def life(store: Any, team: Any, task: str = "go", **more: Any) -> Any:
    async def main() -> Any:
        with store.open("trip") as session:
            return await (await keep_in(session, team, **more)).run(task=task)

    return run_async(main)


@pytest.mark.parametrize("sync", [False, True], ids=["async tool", "sync tool"])
def test_a_run_that_broke_off_repeats_no_side_effect(store: Any, done: list[str], sync: bool) -> None:
    with pytest.raises(RuntimeError, match="Stop"):
        life(store, team_that_books(manager(), done, Ending(BOOK_FLIGHT), sync=sync))
    rm, client = manager(), Scripted(BOOK_FLIGHT, "all booked")
    result = life(store, team_that_books(rm, done, client, sync=sync))
    assert done == ["flight"], "the answer came out of the log"
    assert granted(rm, "tools") == 0, "and took no lane"
    assert "booked flight" in str(client.heard[-1])
    assert result.messages[-1].content == "all booked"


def test_after_a_run_has_ended_the_same_call_is_a_new_one(store: Any, done: list[str]) -> None:
    for _ in range(2):
        life(store, team_that_books(manager(), done, Scripted(BOOK_FLIGHT, "booked")))
    assert done == ["flight", "flight"]


def test_the_same_call_twice_in_one_run_is_two_calls(store: Any, done: list[str]) -> None:
    life(store, team_that_books(manager(), done, Scripted(BOOK_FLIGHT, BOOK_FLIGHT, "booked")))
    assert done == ["flight", "flight"]


def test_a_tool_that_failed_may_be_tried_again(store: Any, done: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Stop"):
            life(store, team_that_books(manager(), done, Ending(BOOK_FLIGHT), fails=True))
    assert done == ["flight", "flight"]


def test_a_team_goes_on_where_its_last_run_ended(store: Any, done: list[str]) -> None:
    life(store, team_that_books(manager(), done, Scripted("Oslo it is")), "Where to?")
    client = Scripted("a museum")
    life(store, team_that_books(manager(), done, client), "And there?")
    assert [m.content for m in client.heard[0][1:]] == ["Where to?", "Oslo it is", "And there?"]
    with store.open("trip") as session:
        assert [m.text for m in session.messages()] == ["Where to?", "Oslo it is", "And there?", "a museum"]


@pytest.mark.parametrize("streams", [False, True])
def test_an_agent_alone_is_kept_too_when_its_result_is_handed_out(store: Any, streams: bool) -> None:
    agents = [manager().attach(agent_of(Scripted(said))) for said in ("first", "second")]

    async def main() -> None:
        for agent, task in zip(agents, ("one", "two"), strict=True):
            with store.open("talk") as session:
                kept = await keep_in(session, agent)
                if streams:
                    async for event in kept.run_stream(task=task):
                        if hasattr(event, "stop_reason"):
                            break
                else:
                    await kept.run(task=task)

    run_async(main)
    assert [m.content for m in agents[1].model_context._messages] == ["one", "first", "two", "second"]


def test_only_what_is_attached_and_does_not_run_is_kept(store: Any) -> None:
    from agentrm.adapters.conformance.provider import Provider, Reply

    provider = Provider(Reply(holds=True))
    bare = team_of(agent_of(Scripted("said"), workbench=workbench_of()))
    running = manager().attach(team_of(agent_of(Client(provider)), turns=2))

    async def main() -> None:
        import asyncio

        with store.open("trip") as session:
            with pytest.raises(AttachError, match=r"keep_in\(session, rm.attach\(team\)\)"):
                await keep_in(session, bare)
            task = asyncio.create_task(running.run(task="go"))
            await come(lambda: provider.open == 1)
            with pytest.raises(TeamRunning):
                await keep_in(session, running)
            provider.release()
            await task

    run_async(main)


def test_a_killed_process_leaves_a_team_that_goes_on(tmp_path: Path) -> None:
    """Real SIGKILL in the middle of the second booking."""
    program = Path(__file__).with_name("killed_team.py")
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def life() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    first, second = life(), life()
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.returncode == 0, second.stderr
    assert "booked flight" in second.stdout and "unknown" in second.stdout.lower()
    assert (tmp_path / "booked").read_text().split() == ["flight", "room"]
