"""Real kills at random points: never more than the last unacknowledged record lost, never an invalid list."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrm.context.messages import Message, ToolCall, ToolResult, make
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import Session, SessionStore, run_call
from agentrm.storage import Disk
from agentrm.storage.frames import scan
from tests.sessions.compactors import KeepTwo

KILLS = 200


class KillingDisk(Disk):
    """Kills its own process at the n-th operation; a write is cut off after some of its bytes."""

    def __init__(self, after: int, part: float) -> None:
        self._left, self._part = after, part

    def _step(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, fd: int, data: bytes) -> int:
        if self._step():
            super().write(fd, data[: int(len(data) * self._part)])
            self._die()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        if self._step():
            self._die()
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        if self._step():
            self._die()
        super().rename(source, target)

    def truncate(self, fd: int, length: int) -> None:
        if self._step():
            self._die()
        super().truncate(fd, length)


def live(root: Path, life: int, disk: Disk, rng: random.Random, say: Callable[[str], None]) -> None:
    """What the process does until it is killed: it tells what was acknowledged, its tools leave traces."""

    def tool(call_id: str) -> str:
        with (root / "effects").open("a") as file:
            file.write(f"{call_id}\n")
        return "done"

    fsync = rng.choice(["always", "batch", "never"])
    options = {"segment_bytes": 3000, "batch_records": 3}
    store = SessionStore(root / "store", disk=disk, fsync=fsync, compactor=KeepTwo(), journal=options)
    session = store.open("s")
    for number in range(10_000):
        name = f"{life}.{number}"
        deed = rng.choice(["say", "say", "call", "compact", "sleep", "queue"])
        if deed == "say":
            session.append(make("user", f"text {name} " * rng.randrange(1, 9), id=name))
        elif deed == "call":
            ids = [f"c{name}.{k}" for k in range(rng.randrange(1, 4))]
            session.append(Message(name, "assistant", tuple(ToolCall(one, "act", "{}") for one in ids)))
            for one in ids:
                run_call(session, one, lambda one=one: tool(one))  # type: ignore[misc]
        elif deed == "compact":
            session.compact(2)
            continue
        elif deed == "sleep":
            session.hibernate()
            session = store.restore("s")
            continue
        else:
            name = f"q{name}"
            session.enqueue(make("user", f"queued {name}", id=name))
            assert session.take() is not None  # the oldest, which an earlier life may have left
        say(name)


def run_until_killed(root: Path, life: int, rng: random.Random) -> list[str]:
    by_count = rng.random() < 0.7
    disk = KillingDisk(rng.randrange(1, 60), rng.random()) if by_count else Disk()
    seed = rng.randrange(2**32)
    delay = rng.uniform(0, 0.06)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        try:
            live(root, life, disk, random.Random(seed), lambda name: _tell(into, name))
        finally:
            os.write(2, b"the child ended by itself\n")
            os._exit(1)
    os.close(into)
    if not by_count:
        time.sleep(delay)  # any moment is a right one: nothing below depends on which
        os.kill(child, signal.SIGKILL)
    said = b""
    while chunk := os.read(out, 65536):
        said += chunk
    os.close(out)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return said.decode().split("\n")[:-1]


def _tell(pipe: int, name: str) -> None:
    os.write(pipe, f"{name}\n".encode())


def check(root: Path, acknowledged: list[str]) -> None:
    store = SessionStore(root / "store")
    if not store.exists("s"):
        assert acknowledged == []
        return
    held = store.read("s")
    ids = [m.id for m in held.verbatim() if not m.results and m.name != "agentrm"]
    waiting = list(held.state.queue)
    for part in ("said", "queued"):  # each in order; what was queued may be taken later than what was said
        wanted = [name for name in acknowledged if name.startswith("q") == (part == "queued")]
        found = [name for name in [*ids, *waiting] if name in set(wanted)]
        assert found == wanted
    assert len(ids) == len(set(ids))
    assert not find_breaks(held.messages())
    assert not find_breaks(held.tier0())
    effects = (root / "effects").read_text().split() if (root / "effects").exists() else []
    assert len(effects) == len(set(effects))
    store.close()


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_200_kills(tmp_path: Path, rng: random.Random) -> None:
    kills = 0
    while kills < KILLS:
        root = tmp_path / str(kills)
        root.mkdir()
        acknowledged: list[str] = []
        for life in range(rng.randrange(2, 9)):
            acknowledged += run_until_killed(root, life, rng)
            kills += 1
            check(root, acknowledged)
        with SessionStore(root / "store").open("s") as session:
            session.append(make("user", "the way on"))
            assert not find_breaks(session.messages())
            assert not session.open_calls() or session.recovered.rerunnable
        shutil.rmtree(root)


def _half_restored(root: Path, file: Path, point: int, part: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            SessionStore(root, disk=KillingDisk(point, part), fsync="always").restore(file)
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def test_a_restore_that_is_killed_leaves_nothing_or_everything(tmp_path: Path, rng: random.Random) -> None:
    store = SessionStore(tmp_path / "whole", compactor=KeepTwo())
    session = store.open("s")
    session.extend(make("user", f"text {n}", id=f"m{n}") for n in range(20))
    session.save_framework_state("adapter", b"state")
    file = Path(session.hibernate())
    store.close()
    outcomes = set()
    for point in range(1, 9):
        root = tmp_path / str(point)
        _half_restored(root, file, point, rng.random())
        there = SessionStore(root)
        outcomes.add(there.exists("s"))
        if there.exists("s"):
            assert len(there.read("s")) == 20
        with there.restore(file) as restored:
            assert [m.id for m in restored.messages()] == [f"m{n}" for n in range(20)]
            assert restored.framework_state("adapter") == b"state"
        there.close()
    assert outcomes == {False, True}


def _say(session: Session) -> None:
    session.append(make("user", "last", id="last"))


def _act(session: Session) -> None:
    session.append(Message("last", "assistant", (ToolCall("c9", "act", "{}"), ToolCall("c10", "act", "{}"))))


def _answer(session: Session) -> None:
    session.append(Message("last", "tool", (ToolResult("c0", "yes"),)))


def _start(session: Session) -> None:
    session.start_call("c0")


def _compact(session: Session) -> None:
    session.compact(2)


def _queue(session: Session) -> None:
    session.enqueue(make("user", "last"))


@pytest.mark.parametrize("last", [_say, _act, _answer, _start, _compact, _queue])
def test_a_tail_torn_at_every_byte_leaves_a_valid_session(tmp_path: Path, last: Callable[[Session], None]) -> None:
    store = SessionStore(tmp_path / "whole", compactor=KeepTwo())
    session = store.open("s")
    session.extend(make("user", str(n), id=f"m{n}") for n in range(5))
    session.append(Message("a", "assistant", (ToolCall("c0", "act", "{}"),)))
    before = session.messages(), session.tier0()
    last(session)
    store.close()
    path = next((tmp_path / "whole").rglob("*.journal"))
    data = path.read_bytes()
    for cut in range(scan(data)[0][-1].offset + 1, len(data)):
        path.write_bytes(data[:cut])
        held = SessionStore(tmp_path / "whole").read("s")
        assert (held.messages(), held.tier0()) == before
        assert len(held.warnings) == 1
