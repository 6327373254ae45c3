"""Environments and the programs that use them: made ahead, shared, released, closed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrm import ConfigError, ForkedError, ManagerClosed, ResourceManager, identity
from agentrm.tools import (
    EnvironmentEnded,
)
from agentrm.tools.journal import Journal
from tests.scheduling.driver import in_threads, until
from tests.tools.scene import left_in, pretending


def test_a_program_keeps_its_environment_until_it_ends(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    with environments.program("p") as program:
        first = program.environment("box")
        assert program.environment("box") is first and first.programs == {"p"}
        assert environments.get("q", "box") is not first
    assert first.state == "ended" and provider.existing == {environments.of_program("q")["box"].id}
    environments.end("q")
    environments.end("q")  # again it does nothing
    assert not provider.existing and left_in(tmp_path) == []


async def test_both_forms_do_the_same(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    async with environments.program("p") as program:
        assert (await program.environment_async("box")).state == "ready"
        assert len(provider.existing) == 1
    assert not provider.existing and left_in(tmp_path) == []


def test_what_is_prepared_ahead_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    ahead = environments.prepare("p", "box")
    until(lambda: ahead.state == "ready")
    assert environments.prepare("p", "box") is environments.get("p", "box") is ahead
    assert len(provider.created) == 1
    assert environments.statistics().made == 1
    environments.close()


def test_no_more_are_in_preparation_at_once_than_configured(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, preparing=3)
    provider.may_go.clear()
    for i in range(20):
        environments.prepare(f"p{i}", "box")
    until(lambda: provider.making == 3)
    assert (environments.statistics().preparing, environments.statistics().queued) == (3, 17)
    provider.may_go.set()
    until(lambda: environments.statistics().ready == 20)
    assert provider.most_making == 3
    environments.close()
    assert not provider.existing and left_in(tmp_path) == []


def test_one_that_somebody_waits_for_goes_before_those_made_ahead(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, preparing=1)
    provider.may_go.clear()
    for i in range(5):
        environments.prepare(f"p{i}", "box")
    until(lambda: provider.making == 1)
    ids = [environments.of_program(f"p{i}")["box"].id for i in range(5)]
    got: list[str] = []
    in_threads(lambda: got.append(environments.get("p4", "box").id))
    until(lambda: environments.of_program("p4")["box"].urgent)
    provider.may_go.set()
    until(lambda: len(provider.created) == 5)
    assert provider.created[:2] == [ids[0], ids[4]] and got == [ids[4]]
    environments.close()


def test_whoever_waits_goes_first_also_where_it_is_made_ahead_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, preparing=1)
    provider.may_go.clear()
    environments.prepare("first", "box")
    until(lambda: provider.making == 1)
    native, asked = environments._rm.lease, list[str]()

    def lease(**more: Any) -> Any:
        asked.append(more["priority"])
        if len(asked) == 1:
            environments.prepare("p", "box")
        return native(**more)

    monkeypatch.setattr(environments._rm, "lease", lease)
    (waiting,) = in_threads(lambda: environments.get("p", "box"))
    until(lambda: len(asked) == 3)
    until(lambda: environments.of_program("p")["box"].urgent)
    assert asked == ["interactive", "background", "interactive"]
    provider.may_go.set()
    waiting.join()
    environments.close()
    assert not provider.existing


def test_the_class_of_the_caller_orders_the_preparations(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, preparing=1)
    provider.may_go.clear()
    environments.prepare("first", "box")
    until(lambda: provider.making == 1)

    def get(program: str, priority: str) -> None:
        with identity(priority=priority):  # type: ignore[arg-type]
            environments.get(program, "box")

    asking = []
    for program, priority in (("low", "background"), ("mid", "subagent"), ("high", "interactive")):
        asking += in_threads(lambda: get(program, priority))
        until(lambda: program in str(environments._of.keys()))
    until(lambda: environments.statistics().queued == 3)
    expected = [environments.of_program(program)["box"].id for program in ("first", "high", "mid", "low")]
    provider.may_go.set()
    until(lambda: len(provider.created) == 4)
    assert provider.created == expected
    for thread in asking:
        thread.join()
    environments.close()


@pytest.mark.parametrize(("share", "count"), [(1, 6), (2, 3), (4, 2), ("any", 1)])
def test_as_many_programs_share_one_as_may(tmp_path: Path, share: object, count: int) -> None:
    environments, provider = pretending(tmp_path, {"box": {"share": share}})
    used = [environments.get(f"p{i}", "box") for i in range(6)]
    assert len(provider.existing) == len(set(used)) == count
    for i in range(5):
        environments.end(f"p{i}")
    assert provider.existing == {used[5].id}
    environments.end("p5")
    assert not provider.existing


def test_a_closed_manager_has_none_and_makes_none(tmp_path: Path) -> None:
    rm = ResourceManager(environments={"home": str(tmp_path), "kinds": {"box": {}}})
    environment = rm.environments.get("p", "box")
    assert environment.files.is_dir() and rm.environments is rm.environments
    rm.close()
    assert left_in(tmp_path) == [] and environment.state == "ended"
    with pytest.raises(ManagerClosed):
        rm.environments.get("p", "box")
    with pytest.raises(EnvironmentEnded):
        environment.run(["true"])


def test_preparations_stand_in_the_statistics_of_their_pool_and_cost_no_budget(tmp_path: Path) -> None:
    rm = ResourceManager(
        environments={"home": str(tmp_path), "preparing": 5, "kinds": {"box": {}}}, budgets={"agent.*": {"calls": 1}}
    )
    for i in range(3):
        with identity(agent="a"):
            rm.environments.get(f"p{i}", "box")
    pool = rm.statistics().pools["environments"]
    assert (pool.lanes, pool.settled) == (5, 3)
    rm.close()


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({}, "environments.kinds"),
        ({"kinds": {"box": {"provider": "nobody"}}}, "environments.kinds.box.provider"),
    ],
)
def test_what_cannot_work_is_refused(section: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = ResourceManager(environments=section).environments
    assert caught.value.key == key


def test_an_unknown_kind_and_a_nameless_program_are_refused(tmp_path: Path) -> None:
    environments, _ = pretending(tmp_path, {"box": {}})
    with pytest.raises(ConfigError, match="box"):
        environments.get("p", "bax")
    with pytest.raises(ConfigError):
        environments.get("", "box")


def _in_child(environments: object, results: object) -> None:
    try:
        environments.end("p")  # type: ignore[attr-defined]
    except ForkedError:
        results.put("refused")  # type: ignore[attr-defined]


def test_a_forked_child_releases_nothing_of_its_parent(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    environments.get("p", "box")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(environments, results))
    child.start()
    child.join()
    assert results.get() == "refused" and child.exitcode == 0
    assert len(provider.existing) == 1 and len(left_in(tmp_path)) == 1
    environments.close()


async def test_many_programs_that_come_and_go_at_once_leave_nothing(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"own": {}, "two": {"share": 2}, "all": {"share": "any"}}, preparing=4)

    async def program(number: int) -> None:
        async with environments.program(f"p{number}") as one:
            one.prepare("own")
            await asyncio.gather(*(one.environment_async(kind) for kind in ("own", "two", "all")))
            if number % 7 == 0:
                raise RuntimeError("the program failed")

    tasks = [asyncio.ensure_future(program(i)) for i in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::5]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(until, lambda: not provider.existing and left_in(tmp_path) == [])
    assert environments._of == {} and environments._live == {}
    assert provider.most_making <= 4


def test_threads_that_ask_together_get_one(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    got: list[object] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        got.append(environments.get("p", "box"))

    for thread in in_threads(*[ask] * 8):
        thread.join()
    assert len(set(map(id, got))) == 1 and len(provider.created) == 1
    environments.close()
    assert os.listdir(tmp_path / "journal") == []


EXITING = """
import sys, threading
from pathlib import Path
from agentrm.tools import at_exit
from tests.tools.scene import pretending
at_exit.HUNG_S = 0.2
environments, provider = pretending(Path(sys.argv[1]), {"box": {}, "stuck": {}}, grace_s=0)
for program in "abc":
    environments.get(program, "box")
environments.get("d", "stuck")
real = provider.remove
provider.remove = lambda place: real(place) if place.kind == "box" else threading.Event().wait()
"""


def test_a_provider_that_hangs_does_not_keep_the_process_from_its_exit(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EXITING, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "1 environments are still being removed" in done.stderr
    (left,) = Journal(tmp_path).entries()
    assert left.place.kind == "stuck" and left.is_left
