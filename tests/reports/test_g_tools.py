"""Area g: tools, their processes and their environments."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrm import ResourceManager, WorkCancelled, cancellable
from agentrm.adapters import CallSpec, acall, call
from agentrm.tools import Place
from tests.scheduling.driver import Scene, in_threads, until
from tests.tools.scene import is_running, left_in, pids_in, pretending

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def sandboxes(home: Path, grace_s: float = 1.0, **kinds: object) -> ResourceManager:
    return ResourceManager(environments={"home": str(home), "grace_s": grace_s, "kinds": kinds or {"box": {}}})


@linux
def test_r116_after_a_timeout_and_at_the_program_s_end_the_process_is_dead(tmp_path: Path) -> None:
    with sandboxes(tmp_path) as rm:
        box = rm.environments.get("agent", "box")
        done = box.run(["sh", "-c", "echo $$ > slow.pid; exec sleep 600"], timeout=1)
        (pid,) = pids_in(box.files)
        assert done.timed_out and not is_running(pid)
        (box.files / "slow.pid").unlink()

        unlimited = in_threads(lambda: box.run(["sh", "-c", "echo $$ > slow.pid; exec sleep 600"]))[0]
        until(lambda: len(pids_in(box.files)) == 1)
        (pid,) = pids_in(box.files)
        rm.environments.end("agent")
        assert not is_running(pid)
        unlimited.join()


@linux
def test_r117_a_grandchild_that_is_deaf_and_holds_the_pipe_holds_up_nobody(tmp_path: Path) -> None:
    with sandboxes(tmp_path, grace_s=1.0) as rm:
        box = rm.environments.get("agent", "box")
        script = "(trap '' TERM; echo $$ > deaf.pid; exec sleep 600) & until [ -s deaf.pid ]; do sleep 0.01; done"
        began = time.monotonic()
        box.run(["sh", "-c", script], timeout=1)
        assert time.monotonic() - began < 60  # not the 600 s of the grandchild; how fast beyond that is the machine's
        assert not any(map(is_running, pids_in(box.files)))
        assert box.usage().processes == 0
        assert box.run(["echo", "next"]).stdout == "next\n"


@linux
async def test_r119_tool_servers_end_with_their_last_user_and_a_shared_one_is_one(tmp_path: Path) -> None:
    server = ["sh", "-c", "echo $$ > server.pid; exec sleep 600"]
    rm = sandboxes(tmp_path, 0.2, own={"server": server}, shared={"server": server, "share": "any"})
    seen: set[int] = set()
    most_shared = 0

    def running(kind: str) -> list[int]:
        return [pid for one in tmp_path.glob(f"places/{kind}-*/files") for pid in pids_in(one) if is_running(pid)]

    async def sub_agent(number: int) -> None:
        nonlocal most_shared
        async with rm.environments.program(f"sub-agent {number}") as program:
            own = await program.environment_async("own")
            await program.environment_async("shared")
            await asyncio.to_thread(until, lambda: bool(pids_in(own.files)) and bool(running("shared")))
            seen.update(pids_in(own.files))
            most_shared = max(most_shared, len(running("shared")))
            if number in (3, 12):
                raise RuntimeError("the sub-agent crashed")

    for number in range(10):
        await asyncio.gather(sub_agent(number), return_exceptions=True)
    await asyncio.gather(*(sub_agent(10 + number) for number in range(5)), return_exceptions=True)
    assert len(seen) == 15 and most_shared == 1
    assert not any(map(is_running, seen)) and running("shared") == []
    rm.close()
    assert left_in(tmp_path) == []


def test_r121_a_container_whose_start_fails_is_removed_by_the_name_it_was_going_to_have(tmp_path: Path) -> None:
    environments, driver = pretending(tmp_path, {"container": {"setup_s": 600}})
    for attempt in range(10):
        error = TimeoutError("the engine did not answer") if attempt % 2 else ValueError("no such network")

        def fail(_: Place, error: Exception = error) -> None:
            raise error  # the object exists already

        driver.fault = fail
        with pytest.raises(type(error)) as caught:
            environments.get("agent", "container")
        assert caught.value is error
    until(lambda: left_in(tmp_path) == [])
    assert len(driver.created) == 10 and not driver.existing


async def _eight_hundred(cancel: bool) -> tuple[list[object], int, int]:
    rm = ResourceManager(tools={"query": {"concurrent": 8}})
    running = most = ended = 0

    async def query(number: int) -> int:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0)
        finally:
            running -= 1
        ended += 1
        return number

    calls = [
        asyncio.ensure_future(acall(rm, CallSpec(kind="tool", tool="query"), lambda n=n: query(n))) for n in range(800)  # type: ignore[misc]
    ]
    if cancel:
        while ended < 400:
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    statistics = rm.statistics()
    assert (running, statistics.running, statistics.waiting) == (0, 0, 0)
    return list(results), most, ended


async def test_r123_of_800_calls_of_one_turn_eight_run_at_once_and_results_keep_their_order() -> None:
    results, most, _ = await _eight_hundred(cancel=False)
    assert results == list(range(800)) and most == 8


async def test_r123_cancelled_half_way_every_call_has_a_result_and_none_runs() -> None:
    results, most, ended = await _eight_hundred(cancel=True)
    assert most == 8 and len(results) == 800
    done = [n for n, result in enumerate(results) if result == n]
    assert len(done) == ended < 800
    assert all(isinstance(results[n], asyncio.CancelledError) for n in set(range(800)) - set(done))


def test_r123_an_agent_with_a_pool_of_its_own_has_a_cap_over_all_of_its_tools() -> None:
    """Among agents that share a pool none has a cap, but a share: where others wait its 800 calls take their turns with
    theirs, where nobody does the lanes are its own. Who wants a cap gives the agent a pool."""
    scene = Scene(pools={"crawler": {"lanes": 8}})
    running = most = 0
    done: list[int] = []

    async def call(number: int) -> None:
        nonlocal running, most
        async with scene.rm.lease(kind="tool", pool="crawler", tool=("fetch", "parse")[number % 2], agent="crawler"):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            done.append(number)

    scene.run_all(*(call(number) for number in range(800)))
    assert most == 8 and sorted(done) == list(range(800))


def test_r126_an_exclusive_tool_runs_alone_soon_and_queue_and_run_times_are_told_apart() -> None:
    scene = Scene(tools={"r": {"concurrent": 4}, "w": {"exclusive": True}})
    running: list[str] = []
    reading: list[tuple[float, float]] = []
    written: dict[str, float] = {}

    async def call(tool: str, at: float, seconds: float) -> None:
        await asyncio.sleep(at)
        async with scene.rm.lease(kind="tool", tool=tool, agent=f"{tool} at {at:g}") as lease:
            running.append(tool)
            assert running == ["w"] or ("w" not in running and len(running) <= 4)
            began = scene.clock.elapsed
            await asyncio.sleep(seconds)
            running.remove(tool)
            if tool == "w":
                written.update(began=began, queued=lease.waited_s, ran=lease.held_s)
            else:
                reading.append((at, began))

    scene.run_all(*(call("r", i * 0.1, 0.5) for i in range(100)), call("w", 1.0, 2.0))
    assert written["began"] <= 1.0 + 0.5 + 0.5  # those that ran or came before have ended, within one more reading
    assert written["queued"] == pytest.approx(written["began"] - 1.0) and written["ran"] == pytest.approx(2.0)
    assert not any(at > 1.0 and began < written["began"] + 2.0 for at, began in reading)  # nobody who came later began
    assert len(reading) == 100  # and reading went on
    assert scene.rm.statistics().pools["tools.w"].mean_wait_s == pytest.approx(written["queued"])




def test_r127_after_a_cancellation_no_tool_starts_and_no_model_is_called() -> None:
    rm = ResourceManager()
    effects: list[int] = []
    model_calls = 0

    def tool(number: int, work: cancellable) -> str:
        effects.append(number)
        work.cancel("the user pressed stop")  # it comes while the first call runs, from wherever
        return f"result {number}"

    def turn(work: cancellable) -> tuple[list[str], str]:
        nonlocal model_calls
        results = []
        for number in range(5):
            try:
                results.append(call(rm, CallSpec(kind="tool", tool="step"), lambda n=number: tool(n, work)))  # type: ignore[misc]
            except WorkCancelled:
                results.append("cancelled")
        try:
            with rm.lease(model="any"):
                model_calls += 1
        except WorkCancelled:
            return results, "cancelled"
        return results, "success"

    with cancellable() as work:
        results, status = turn(work)
    assert effects == [0] and model_calls == 0
    assert results == ["result 0", *["cancelled"] * 4] and status == "cancelled"


async def test_r127_through_a_framework_the_run_ends_there(tmp_path: Path) -> None:
    create_agent = pytest.importorskip("langchain.agents").create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    from agentrm_langchain import AgentRMMiddleware

    rm, effects, work = ResourceManager(tools={"step": {"concurrent": 1}}), list[int](), cancellable()

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: object, **_: object) -> Model:
            return self

    def step(number: int) -> str:
        """One step."""
        effects.append(number)
        work.cancel()
        return "done"

    calls = [{"name": "step", "args": {"number": n}, "id": f"c{n}", "type": "tool_call"} for n in range(5)]
    asked: list[str] = []

    def answers() -> Iterator[AIMessage]:
        asked.append("model")
        yield AIMessage("", tool_calls=calls)
        asked.append("model")
        yield AIMessage("all done")

    agent = create_agent(Model(messages=answers()), [step], middleware=[AgentRMMiddleware(rm)])
    with work, pytest.raises(WorkCancelled):
        await agent.ainvoke({"messages": [("user", "go")]})
    assert len(effects) == 1 and asked == ["model"]
