"""Trap 11 of AutoGen and the rest of hibernation: teams sleep in one file and go on elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat")

from autogen_agentchat.conditions import ExternalTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool

from agentrm.adapters.conformance.provider import Provider, Reply
from agentrm.context.compact import Compactor
from agentrm.context.pairs import is_valid
from agentrm.context.sessions import SessionError, SessionStore
from agentrm_autogen import CompactingContext, TeamRunning, hibernate, restore
from tests.plugins.autogen.scenes import (
    Client,
    Scripted,
    agent_of,
    calling,
    granted,
    manager,
    run_async,
    team_of,
    workbench_of,
)
from tests.waiting import come


class _Counter(FunctionTool):
    """A tool with state."""

    def __init__(self) -> None:
        self.calls = 0
        super().__init__(self._count, "counts", name="count")

    async def _count(self) -> str:
        self.calls += 1
        return f"call {self.calls}"

    async def save_state_json(self) -> Any:
        return {"calls": self.calls}

    async def load_state_json(self, state: Any) -> None:
        self.calls = state["calls"]


def _team(rm: Any, *says: Any) -> tuple[Any, _Counter, Scripted]:
    counter, client = _Counter(), Scripted(*says)
    context = CompactingContext(10_000, compactor=Compactor(embedder=None))
    agent = agent_of(client, workbench=workbench_of(counter), max_tool_iterations=2, model_context=context)
    return rm.attach(team_of(agent, turns=4)), counter, client


@pytest.fixture
def here(tmp_path: Path) -> Any:
    with SessionStore(tmp_path / "here", fsync="never") as store:
        yield store


@pytest.fixture
def there(tmp_path: Path) -> Any:
    with SessionStore(tmp_path / "there", fsync="never") as store:
        yield store


def test_trap_11_a_team_goes_on_elsewhere_with_its_contexts_and_the_state_of_its_tools(here: Any, there: Any) -> None:
    rm, elsewhere = manager(), manager()
    team, counter, _ = _team(rm, calling("count"), "counted")
    again, counter_there, client = _team(elsewhere, "as I said")

    async def main() -> Any:
        await team.run(task="Count.")
        file = await hibernate(here, team, "trip", tenant="research")
        assert await restore(there, file, again, tenant="research") == "trip"
        return await again.run(task="And?")

    result = run_async(main)
    assert result.messages[-1].content == "as I said"
    assert (counter.calls, counter_there.calls) == (1, 1), "not called again, and its state came along"
    heard = [str(message.content) for message in client.heard[0]]
    assert any("Count." in text for text in heard)
    assert any("call 1" in text for text in heard)
    assert granted(elsewhere) >= 1


def test_trap_11_a_team_that_runs_is_refused_and_says_how_to_stop_it(here: Any) -> None:
    rm, provider = manager(), Provider(Reply(holds=True))
    stop = ExternalTermination()
    team = rm.attach(RoundRobinGroupChat([agent_of(Client(provider))], termination_condition=stop))

    async def main() -> Path:
        task = asyncio.create_task(team.run(task="go"))
        await come(lambda: provider.open == 1)
        with pytest.raises(TeamRunning, match="ExternalTermination"):
            await hibernate(here, team, "trip")
        with pytest.raises(TeamRunning):
            await restore(here, "trip", team)
        stop.set()
        provider.release()
        await task
        return await hibernate(here, team, "trip")

    assert run_async(main).exists()


def test_what_a_team_said_can_be_read_searched_and_continued(here: Any, there: Any) -> None:
    team, _, _ = _team(manager(), calling("count"), "counted")
    again, _, _ = _team(manager(), "and goes on")

    async def main() -> Path:
        await team.run(task="Count the sheep.")
        await restore(there, await hibernate(here, team, "trip"), again)
        await again.run(task="And the goats?")
        return await hibernate(there, again, "trip")

    file = run_async(main)
    with here.restore(file) as session:  # the longer of two histories goes on
        said = session.messages()
        assert is_valid(said)
        assert [m.role for m in said[:4]] == ["user", "assistant", "tool", "assistant"]
        assert session.search("goats")
        assert said[0].name == "user"
        assert len({message.id for message in said}) == len(said)


def test_a_file_of_something_else_is_named_and_a_team_of_others_is_refused(here: Any) -> None:
    team, _, _ = _team(manager(), "said")
    here.open("other").hibernate()

    async def main() -> None:
        with pytest.raises(SessionError, match="no team or agent"):
            await restore(here, "other", team)
        await hibernate(here, team, "trip")
        with pytest.raises(ValueError, match="not found in the saved state"):
            await restore(here, "trip", team_of(agent_of(Scripted("said"), name="stranger")))

    run_async(main)


def test_an_agent_alone_is_hibernated_too(here: Any, there: Any) -> None:
    rm = manager()
    agent = rm.attach(agent_of(Scripted("first")))
    again = rm.attach(agent_of(Scripted("second")))

    async def main() -> None:
        await agent.run(task="one")
        await restore(there, await hibernate(here, agent, "talk"), again, as_session="copy")
        await again.run(task="two")

    run_async(main)
    assert [m.content for m in again.model_context._messages] == ["one", "first", "two", "second"]
    assert there.exists("copy")
