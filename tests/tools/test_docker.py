"""Containers through Docker's own SDK, against an engine on loopback; and against a real one where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agentrm import ConfigError, ResourceManager
from agentrm.errors import AgentRMError
from agentrm.tools import clean
from agentrm.tools.journal import Journal
from tests.scheduling.driver import until
from tests.tools.docker_engine import Engine
from tests.tools.scene import left_in

docker = pytest.importorskip("docker")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the engine's commands are found through /proc")
IMAGE = {"provider": "docker", "options": {"image": "python:3.11"}}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    running = Engine()
    monkeypatch.setenv("DOCKER_HOST", running.host)
    yield running
    running.close()


def boxes(home: Path, **kind: object) -> ResourceManager:
    return ResourceManager(environments={"home": str(home), "grace_s": 0.2, "kinds": {"box": IMAGE | kind}})


def test_a_container_lives_as_long_as_its_program(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path, setup=["sh", "-c", "echo hello > file"], ports=1, variables={"COLOUR": "red"}) as rm:
        with rm.environments.program("p") as program:
            box = program.environment("box")
            assert list(engine.containers) == [box.id]
            asked = engine.containers[box.id]
            assert asked["HostConfig"]["PortBindings"] == {
                f"{box.ports[0]}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(box.ports[0])}]
            }
            assert asked["Labels"] == {"agentrm.environment": box.id} and asked["User"] == f"{os.getuid()}:{os.getgid()}"
            done = box.run(["sh", "-c", "cat file; echo $COLOUR >&2; exit 3"])
            assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "red\n")
            assert box.usage().processes == 1 and box.usage().ports == box.ports
        assert engine.containers == {} and left_in(tmp_path) == []


def test_a_command_that_runs_too_long_is_ended_in_the_container(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path) as rm:
        box = rm.environments.get("p", "box")
        assert box.run(["sh", "-c", "while :; do sleep 0.05; done"], timeout=0.1).timed_out


def test_a_command_that_is_deaf_is_killed_in_the_container_and_its_output_kept(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path) as rm, ThreadPoolExecutor() as pool:
        box = rm.environments.get("p", "box")
        deaf = "trap '' TERM; echo began; touch deaf; while :; do sleep 0.05; done"
        running = pool.submit(box.run, ["sh", "-c", deaf])
        until((box.files / "deaf").exists)
        box.stop()
        done = running.result()
        assert not done.timed_out and done.returncode == 128 + 9 and done.stdout == "began\n"


def test_a_command_that_the_engine_does_not_start_raises_why(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path) as rm:
        box = rm.environments.get("p", "box")
        engine.fail_execs = 1
        with pytest.raises(docker.errors.APIError, match="no such user"):
            box.run(["true"])
        assert box.run(["true"]).returncode == 0


def test_of_ten_starts_that_fail_no_container_is_left(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path) as rm:
        engine.fail_starts = 10
        for _ in range(10):
            with pytest.raises(docker.errors.APIError, match="external connectivity"):
                rm.environments.get("p", "box")
        until(lambda: left_in(tmp_path) == [])
        assert len(engine.created) == 10 and engine.containers == {}
        assert rm.environments.get("p", "box").state == "ready"


def test_a_container_that_is_gone_is_noticed(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path, share="any") as rm:
        first = rm.environments.get("p", "box")
        engine.containers.clear()
        assert rm.environments.get("p", "box") is not first


def test_the_container_of_a_dead_owner_is_removed_by_name(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path) as rm:
        rm.environments.get("p", "box")
        (entry,) = Journal(tmp_path).entries()
        Journal(tmp_path).abandon(entry)
        assert clean(tmp_path) == ([replace(entry, abandoned=True)], {})
        assert engine.containers == {} and left_in(tmp_path) == []


def test_an_image_must_be_named(engine: Engine, tmp_path: Path) -> None:
    with boxes(tmp_path, options={}) as rm, pytest.raises(ConfigError, match="options.image"):
        rm.environments.get("p", "box")


def test_an_engine_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with boxes(tmp_path, options={"image": "any"}) as rm, pytest.raises(AgentRMError, match=r"can't be reached.*DOCKER_HOST"):
        _ = rm.environments
    assert left_in(tmp_path) == []  # found before anything was asked for


def test_what_only_a_missing_engine_could_remove_stays_in_the_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: Engine
) -> None:
    with boxes(tmp_path) as rm:
        box = rm.environments.get("p", "box")
        (entry,) = Journal(tmp_path).entries()
        Journal(tmp_path).abandon(entry)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
            removed, problems = clean(tmp_path)
            assert removed == [] and "DOCKER_HOST" in str(problems[box.id])
        assert list(engine.containers) == [box.id] and clean(tmp_path)[1] == {}
        assert engine.containers == {} and left_in(tmp_path) == []


def test_a_real_engine_does_the_same(tmp_path: Path) -> None:
    try:
        client = docker.from_env()
        images = [tag for image in client.images.list() for tag in image.tags]
    except docker.errors.DockerException:
        pytest.skip("no Docker engine here")
    if not images:
        pytest.skip("the engine has no image")
    with boxes(tmp_path, options={"image": images[0]}) as rm:
        box = rm.environments.get("p", "box")
        assert box.run(["sh", "-c", "echo hello"]).stdout == "hello\n"
        assert box.run(["sleep", "600"], timeout=1).timed_out
        rm.environments.end("p")
        with pytest.raises(docker.errors.NotFound):
            client.containers.get(box.id)
