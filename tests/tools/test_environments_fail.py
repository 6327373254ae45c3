"""What goes wrong with an environment: its set-up, its making, its use, its removal; each is told and leaves nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agentrm.tools import (
    EnvironmentEnded,
    EnvironmentLeft,
    EnvironmentLost,
    Place,
    SetupFailed,
    SetupTimeout,
    leftovers,
)
from agentrm.tools.journal import Journal
from tests.scheduling.driver import in_threads, until
from tests.tools.scene import left_in, pretending


def test_a_failed_set_up_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {"setup": ["false"]}})
    with pytest.raises(SetupFailed, match="it did not work") as caught:
        environments.get("p", "box")
    assert caught.value.kind == "box" and caught.value.output
    until(lambda: left_in(tmp_path) == [])
    assert not provider.existing and environments.of_program("p") == {}
    assert environments.statistics().failed == 1


def test_after_a_failure_it_can_be_asked_for_again(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})

    def fail(_: object) -> None:
        raise RuntimeError("no space on the engine")

    provider.fault = fail
    with pytest.raises(RuntimeError, match="no space on the engine"):
        environments.get("p", "box")
    provider.fault = lambda _: None
    assert environments.get("p", "box").state == "ready"
    environments.close()
    assert not provider.existing


def test_a_preparation_that_hangs_gives_its_turn_away_and_is_removed_when_it_comes_back(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"slow": {"setup_s": 0.05}, "box": {}}, preparing=1)
    provider.fault = lambda place: provider.may_go.wait() and None if place.kind == "slow" else None
    provider.may_go.clear()
    with pytest.raises(SetupTimeout, match="setup_s"):
        environments.get("p", "slow")
    provider.may_go.set()
    until(lambda: not provider.existing and left_in(tmp_path) == [])
    assert environments.get("p", "box").state == "ready"
    environments.close()


def test_a_program_that_ends_while_its_environment_is_made_leaves_nothing(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, preparing=1)
    provider.may_go.clear()
    making, queued = environments.prepare("p", "box"), environments.prepare("q", "box")
    until(lambda: provider.making == 1)
    errors: list[BaseException] = []

    def get(program: str) -> None:
        try:
            environments.get(program, "box")
        except EnvironmentEnded as error:
            errors.append(error)

    in_threads(lambda: get("p"), lambda: get("q"))
    until(lambda: making.urgent is False and queued.urgent)
    environments.end("q")
    until(lambda: len(errors) == 1)
    ending = in_threads(lambda: environments.end("p"))[0]
    until(lambda: making.retired)
    provider.may_go.set()
    ending.join()
    until(lambda: len(errors) == 2)
    assert not provider.existing and left_in(tmp_path) == []
    assert (making.state, queued.state) == ("ended", "ended")
    assert environments.statistics().queued == environments.statistics().preparing == 0


def test_a_program_s_own_environment_that_is_lost_is_told_once_and_made_anew(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}})
    first = environments.get("p", "box")
    provider.unfit.add(first.id)
    with pytest.raises(EnvironmentLost, match="ask again"):
        environments.get("p", "box")
    assert not provider.existing
    assert environments.get("p", "box") is not first
    environments.close()


def test_a_shared_one_that_is_lost_is_replaced_and_goes_with_its_last_user(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {"share": "any"}})
    first = environments.get("p", "box")
    assert environments.get("q", "box") is first
    provider.unfit.add(first.id)
    second = environments.get("p", "box")
    assert second is not first and provider.existing == {first.id, second.id}
    assert environments.get("q", "box") is second
    assert provider.existing == {second.id}
    environments.close()


def test_the_health_command_decides_too(tmp_path: Path) -> None:
    environments, _ = pretending(tmp_path, {"good": {"health": ["true"]}, "bad": {"health": ["false"]}})
    assert environments.get("p", "good").is_fit()
    with pytest.raises(EnvironmentLost):
        environments.get("p", "bad")
    environments.close()


def test_what_can_t_be_removed_is_told_and_left_to_the_doctor(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}, "stuck": {}})
    box, stuck = environments.get("p", "box"), environments.get("p", "stuck")
    provider.stuck.add("stuck")
    with pytest.raises(EnvironmentLeft, match="is busy") as caught:
        environments.end("p")
    assert list(caught.value.problems) == [stuck.id]
    assert box.id in provider.removed
    (left,) = leftovers(tmp_path)
    assert left.entry.abandoned and left.entry.place.id == stuck.id and left.entry.program == "p"


def test_a_removal_that_hangs_is_told_and_ends_behind(tmp_path: Path) -> None:
    environments, provider = pretending(tmp_path, {"box": {}}, remove_s=0.05)
    box = environments.get("p", "box")
    real, go = provider.remove, threading.Event()
    provider.remove = lambda place: (go.wait(), real(place))[1]  # type: ignore[method-assign]
    with pytest.raises(EnvironmentLeft, match=r"not over after 0.05 s \(environments.remove_s\)") as caught:
        environments.end("p")
    assert list(caught.value.problems) == [box.id]
    (entry,) = Journal(tmp_path).entries()
    assert entry.place.id == box.id and not entry.abandoned, "its owner lives and is at it"
    go.set()
    until(lambda: left_in(tmp_path) == [])
    assert box.gone.wait() and not provider.existing
    environments.close()


@pytest.mark.parametrize("share", [1, "any"])
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_check_that_raises_or_hangs_is_a_no(tmp_path: Path, how: str, share: object) -> None:
    environments, provider = pretending(tmp_path, {"box": {"share": share, "setup_s": 0.05}})
    first = environments.get("p", "box")
    real, never = provider.is_there, threading.Event()

    def check(place: Place) -> bool:
        if place.id != first.id:
            return real(place)
        if how == "raises":
            raise OSError("the engine is gone")
        return never.wait()

    provider.is_there = check  # type: ignore[method-assign]
    if share == 1:
        with pytest.raises(EnvironmentLost, match="the engine is gone" if how == "raises" else "not over after 0.05 s"):
            environments.get("p", "box")
    second = environments.get("p", "box")
    assert second is not first and provider.existing == {second.id}
    never.set()
    environments.close()
