"""Environments of this machine, with real processes: what commands leave behind, and what dead owners do."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager
from agentrm.cli.main import main
from agentrm.tools import Environments, clean, leftovers
from agentrm.tools.journal import Journal
from agentrm.tools.local import remove_folder
from agentrm.tools.owners import is_alive, this_process
from agentrm.tools.processes import marked
from tests.scheduling.driver import until
from tests.tools.scene import is_running, left_in, pids_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "$PORT"]
KINDS = {
    "box": {"setup": ["sh", "-c", "echo $$ > setup.pid; echo ready > state"], "variables": {"COLOUR": "red"}},
    "server": {"server": SERVER, "ports": 2, "share": "any"},
}


@pytest.fixture
def environments(tmp_path: Path) -> Iterator[Environments]:
    rm = ResourceManager(environments={"home": str(tmp_path / "home"), "grace_s": 0.5, "kinds": KINDS})
    yield rm.environments
    rm.close()
    assert left_in(tmp_path / "home") == []


def test_commands_run_in_the_folder_with_the_variables(environments: Environments) -> None:
    box = environments.get("p", "box")
    done = box.run(["sh", "-c", 'cat state; echo "$COLOUR $0" >&2; exit 3', "$COLOUR"])
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (3, "ready\n", "red red\n", False)
    assert box.run(["echo", "${COLOUR}$COLOURS$$"]).stdout == "red$COLOURS$$\n"
    with pytest.raises(FileNotFoundError):
        box.run(["no-such-command"])
    assert box.usage().processes == 0


def test_what_a_command_leaves_behind_ends_with_it(environments: Environments) -> None:
    box = environments.get("p", "box")
    script = """
        (trap '' TERM HUP; echo $$ > deaf.pid; exec sleep 600) &
        setsid sh -c 'echo $$ > away.pid; exec sleep 600' &
        while [ ! -s deaf.pid ] || [ ! -s away.pid ]; do sleep 0.01; done
    """
    done = box.run(["sh", "-c", script])
    assert done.returncode == 0
    assert len(pids_in(box.files)) == 3
    assert not any(map(is_running, pids_in(box.files)))


def test_a_long_output_is_cut_in_its_middle(environments: Environments) -> None:
    done = environments.get("p", "box").run([sys.executable, "-c", "print('a' * 3_000_000 + 'the end')"])
    assert len(done.stdout) < 1_100_000 and done.stdout.endswith("the end\n") and "bytes left out" in done.stdout


async def test_a_cancelled_command_has_ended_when_the_cancellation_goes_on(environments: Environments) -> None:
    box = await environments.get_async("p", "box")
    task = asyncio.ensure_future(box.run_async(["sh", "-c", "echo $$ > it.pid; sleep 600"]))
    await asyncio.to_thread(until, lambda: len(pids_in(box.files)) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(is_running, pids_in(box.files)))
    assert (await box.run_async(["echo", "on"])).stdout == "on\n"


def test_a_server_serves_its_programs_and_goes_with_the_last(environments: Environments) -> None:
    server = environments.get("p", "server")
    assert environments.get("q", "server") is server and len(set(server.ports)) == 2
    (server.files / "page").write_text("hello")

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.ports[0]}/page") as answer:
                return bool(answer.read() == b"hello")
        except OSError:
            return False

    until(answers)
    usage = server.usage()
    assert usage.processes >= 1 and usage.ports == (server.ports[0],) and usage.disk_bytes > 0
    environments.end("p")
    assert answers()
    environments.end("q")
    assert not answers() and not marked({server.id})


def test_a_server_that_died_is_replaced(environments: Environments) -> None:
    server = environments.get("p", "server")
    until(lambda: bool(marked({server.id})))  # a process shows its variables a moment after it has begun
    for one in marked({server.id}):
        os.kill(one.pid, signal.SIGKILL)
    until(lambda: not server.is_fit())
    second = environments.get("p", "server")
    assert second is not server and second.is_fit()
    assert not server.place.folder.exists()


def test_what_is_read_only_is_removed_too(tmp_path: Path) -> None:
    inner = tmp_path / "place" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    for folder in (inner, inner.parent, tmp_path / "place"):
        folder.chmod(0o500)
    remove_folder(tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_what_lies_thousands_of_levels_deep_is_measured_and_removed(environments: Environments) -> None:
    box = environments.get("p", "box")
    dig = "import os\nfor _ in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)\nopen('file', 'w').write('x')"
    assert box.run([sys.executable, "-c", dig]).returncode == 0
    assert box.usage().disk_bytes > 0
    environments.end("p")
    assert not box.place.folder.exists()


def test_links_that_lead_out_are_removed_and_not_followed(environments: Environments, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").write_text("x")
    box = environments.get("p", "box")
    box.run(["sh", "-c", f"ln -s {outside} a; ln -s {outside}/file b; mkdir c; ln -s {outside} c/d; chmod 500 c"])
    environments.end("p")
    assert (outside / "file").read_text() == "x" and outside.stat().st_mode & 0o777 == 0o750
    for script in (f"cd ..; rm -r files; ln -s {outside} files", f"cd ../..; mv $0 ../moved; ln -s {outside} $0"):
        box = environments.get("p", "box")
        box.run(["sh", "-c", script, box.id])
        environments.end("p")
        assert (outside / "file").read_text() == "x" and not box.place.folder.is_symlink()


@pytest.mark.parametrize("words", [[], "echo hello", [1], [None]])
def test_what_is_no_command_is_refused(environments: Environments, words: Any) -> None:
    with pytest.raises(ConfigError, match="words"):
        environments.get("p", "box").run(words)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 10**30, "1"])
async def test_what_is_no_time_is_refused(environments: Environments, timeout: Any) -> None:
    box = await environments.get_async("p", "box")
    with pytest.raises(ConfigError, match="timeout"):
        box.run(["true"], timeout)
    with pytest.raises(ConfigError, match="timeout"):
        await box.run_async(["true"], timeout)


def test_the_longest_time_is_no_fault(environments: Environments) -> None:
    assert environments.get("p", "box").run(["true"], timeout=10**9).returncode == 0


def test_a_home_that_can_be_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rm = ResourceManager(environments={"home": str(tmp_path / "file"), "kinds": {"box": {}}})
    with pytest.raises(ConfigError, match="environments.home"):
        _ = rm.environments
    rm.close()


# --- owners that die ---

OWNER = """
import sys, time
from agentrm import ResourceManager
rm = ResourceManager(environments={"home": sys.argv[1], "kinds": {
    "box": {"setup": ["sh", "-c", "dd if=/dev/zero of=blob bs=100k count=1 2>/dev/null"]},
    "server": {"server": ["sh", "-c", "trap '' TERM; echo $$ > server.pid; while :; do sleep 1; done"]},
}})
rm.environments.get("p", "box")
rm.environments.get("q", "server")
print("ready", flush=True)
time.sleep(600)
"""


def start_owner(home: Path) -> subprocess.Popen[bytes]:
    before = len(list((home / "places").glob("*/files/server.pid")))
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(home)], stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    until(lambda: len(list((home / "places").glob("*/files/server.pid"))) > before)
    return owner


def test_the_doctor_lists_and_removes_what_a_killed_owner_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    dead, alive = start_owner(home), start_owner(home)
    dead_ids = {entry.place.id for entry in Journal(home).entries() if entry.owner.pid == dead.pid}
    try:
        assert leftovers(home) == []
        dead.kill()  # not waited for yet: a zombie is as dead as can be
        until(lambda: {one.entry.place.id for one in leftovers(home)} == dead_ids)
        assert sum(one.processes for one in leftovers(home)) >= 1
        assert sum(one.disk_bytes for one in leftovers(home)) >= 100_000
        assert main(["doctor", "--environments", str(home)]) == 1
        assert f"process {dead.pid} is dead" in capsys.readouterr().out
        assert main(["doctor", "--environments", str(home), "--clean"]) == 0
        assert "Removed" in capsys.readouterr().out
        assert leftovers(home) == [] and not marked(dead_ids)
        assert not any((home / "places" / id).exists() for id in dead_ids)
        assert len(left_in(home)) == 4  # those of the living: two entries, two folders
        assert len(marked({entry.place.id for entry in Journal(home).entries()})) >= 1
    finally:
        for owner in (dead, alive):
            owner.kill()
            owner.communicate()
    clean(home)
    assert left_in(home) == []


def test_the_next_owner_of_the_same_home_removes_it_too(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    left = {entry.place.id for entry in Journal(tmp_path).entries()}
    owner.kill()
    owner.communicate()
    rm = ResourceManager(environments={"home": str(tmp_path), "kinds": {"box": {}}})
    rm.environments.get("p", "box")
    until(lambda: not marked(left) and len(left_in(tmp_path)) == 2)
    rm.close()


def test_an_owner_that_exits_in_peace_leaves_nothing(tmp_path: Path) -> None:
    other = 'other = ResourceManager(environments={"home": sys.argv[1], "kinds": {"box": {}}}); other.environments.get("p", "box")'
    script = OWNER.replace("time.sleep(600)", f"{other}; other.close()")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, stdout=subprocess.PIPE)
    assert left_in(tmp_path) == []


UNBORN = """
import os, sys
from agentrm import ResourceManager
rm = ResourceManager(environments={"home": sys.argv[1], "kinds": {"box": {}}})
box = rm.environments.get("p", "box")
if os.fork() == 0:  # what subprocess does, stopped between two of its steps
    os.chdir(box.files)
    os.setsid()
    print(box.id, os.getpid(), flush=True)
    sys.stdin.readline()
    os.execve("/bin/sleep", ["sleep", "600"], {"AGENTRM_ENVIRONMENT": f"{box.id}/1"})
os.kill(os.getpid(), 9)
"""


def test_a_process_that_was_being_started_when_its_owner_died_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows no mark yet when the doctor looks, and does a moment later."""
    glances = []

    def goes_on() -> None:
        if not glances:
            assert owner.stdin is not None
            owner.stdin.write(b"go on\n")
            owner.stdin.flush()
        glances.append(bool(marked({id})))

    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", UNBORN, str(tmp_path)], stdin=pipe, stdout=pipe)
    assert owner.stdout is not None
    id, pid = owner.stdout.readline().decode().split()
    owner.wait()
    assert is_running(int(pid)) and not marked({id})
    monkeypatch.setattr("agentrm.tools.processes._glance", goes_on)
    monkeypatch.setattr("agentrm.tools.processes.UNBORN_S", 60.0)
    assert [entry.place.id for entry in clean(tmp_path)[0]] == [id]
    assert glances and not is_running(int(pid)) and left_in(tmp_path) == []
    owner.stdout.close()


def test_somebodys_shell_in_a_folder_that_is_removed_is_left_alone(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = environments.get("p", "box")
    monkeypatch.setattr("agentrm.tools.processes.UNBORN_S", 0.0)
    with subprocess.Popen(["cat"], cwd=box.files, stdin=subprocess.PIPE) as shell:
        environments.end("p")
        assert not box.place.folder.exists() and shell.poll() is None


def test_a_reused_process_id_is_another_owner() -> None:
    me = this_process()
    assert is_alive(me)
    assert not is_alive(replace(me, started=me.started - 1))
    assert not is_alive(replace(me, boot="an earlier start of this machine"))
    assert is_alive(replace(me, boot="another machine", host="elsewhere"))
    assert is_alive(replace(me, namespace="another container", pid=2**22 - 1))


def test_signals_do_not_reach_a_process_that_has_the_id_of_an_earlier_one(environments: Environments) -> None:
    from agentrm.tools.processes import _tell

    server = environments.get("p", "server")
    until(lambda: bool(marked({server.id})))  # its exec shows the mark a moment after it has begun
    (one, *_) = marked({server.id})
    _tell([replace(one, started=one.started - 1)], signal.SIGKILL)
    assert is_running(one.pid)


def test_a_torn_or_foreign_entry_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "torn.json").write_text('{"version": 1, "place"')
    (folder / "newer.json").write_text('{"version": 2}')
    (folder / ".half.1.tmp").write_text("{")  # its writer died
    with open(folder / ".half.2.tmp", "w") as unfinished:
        fcntl.flock(unfinished, fcntl.LOCK_EX)
        assert list(Journal(tmp_path).entries()) == [] and clean(tmp_path) == ([], {})
        assert sorted(os.listdir(folder)) == [".half.2.tmp", "newer.json", "torn.json"] and "torn.json" in caplog.text


def test_no_secret_of_an_environment_is_in_the_journal(environments: Environments) -> None:
    box = environments.get("p", "box")
    assert "red" not in (environments.home / "journal" / f"{box.id}.json").read_text()


def test_the_processes_of_environments_inside_an_environment_end_with_it(tmp_path: Path) -> None:
    home = tmp_path / "outer"
    rm = ResourceManager(environments={"home": str(home), "grace_s": 0.1, "kinds": {"box": {}}})
    box = rm.environments.get("p", "box")
    inner = box.files / "inner"
    script = OWNER.replace("time.sleep(600)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    script = script.replace('print("ready"', f'{_WAIT}\nprint("ready"')
    box.run([sys.executable, "-c", script, str(inner)])
    assert len(list(inner.glob("places/*/files/server.pid"))) == 1
    assert not any(is_running(int(path.read_text())) for path in inner.glob("places/*/files/server.pid"))
    rm.close()
    assert left_in(home) == []


_WAIT = "import glob\nwhile not any(open(p).read() for p in glob.glob(sys.argv[1] + '/places/*/files/server.pid')): time.sleep(0.01)"
