"""The hibernation file: complete, atomic, checked, portable; two histories never mix."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.context.messages import Message, ToolCall, make
from agentrm.context.sessions import (
    Session,
    SessionClosed,
    SessionDraining,
    SessionExists,
    SessionForked,
    SessionNotFound,
    SessionStore,
    run_call,
)
from agentrm.context.sessions.hibernation import read_header, read_hibernated
from agentrm.errors import AgentRMError
from agentrm.storage import AesGcmSealer, DamagedData, FaultyDisk, WriteFailed, WrongKey
from tests.sessions.compactors import KeepTwo


def full(store: SessionStore) -> Session:
    """A session with something of everything."""
    session = store.open("s", tenant="t")
    session.extend(make("user", f"text {n}", id=f"m{n}") for n in range(6))
    session.compact(2)
    session.append(Message("a", "assistant", (ToolCall("c1", "act", "{}"), ToolCall("c2", "act", "{}"))))
    run_call(session, "c1", lambda: "done")
    session.await_approval("c2")
    session.enqueue(make("user", "queued", id="q"), ttl_s=1e9)
    session.set("budgets", {"tokens": 5000, "spent": 1200})
    session.set("pressure", 0.7)
    session.set_status("failed")
    session.save_framework_state("langgraph", b"\0opaque\n" * 10)
    return session


def seen(session: Session) -> object:
    return (
        session.verbatim(),
        session.tier0(),
        session.messages(),
        [(c.id, c.state) for c in session.open_calls()],
        session.queued(),
        session.get("budgets"),
        session.get("pressure"),
        session.get("status"),
        session.framework_state("langgraph"),
    )


@pytest.mark.parametrize("sealed", [False, True])
def test_everything_comes_back_elsewhere(tmp_path: Path, sealed: bool) -> None:
    sealer = AesGcmSealer({"k": os.urandom(32)}) if sealed else None
    session = full(SessionStore(tmp_path / "a", compactor=KeepTwo(), sealer=sealer))
    before = seen(session)
    file = Path(session.hibernate())
    restored = SessionStore(tmp_path / "b", sealer=sealer).restore(file)
    assert (restored.tenant, restored.id) == ("t", "s")
    assert seen(restored) == before


def test_another_process_restores_the_same_bytes(tmp_path: Path) -> None:
    session = full(SessionStore(tmp_path / "a", compactor=KeepTwo()))
    before = [m.to_json() for m in session.tier0()]
    file = session.hibernate()
    script = (
        "import sys; from pathlib import Path; from agentrm.context.sessions import SessionStore\n"
        "s = SessionStore(sys.argv[1]).restore(Path(sys.argv[2]))\n"
        "print([m.to_json() for m in s.tier0()])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "b", file], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str(before)


def test_a_hibernated_session_takes_nothing_more(tmp_path: Path) -> None:
    session = SessionStore(tmp_path).open("s")
    session.hibernate()
    with pytest.raises(SessionClosed, match="is hibernated"):
        session.enqueue(make("user", "too late"))


def test_a_draining_session_starts_no_call(tmp_path: Path) -> None:
    session = SessionStore(tmp_path).open("s")
    session.append(Message("a", "assistant", (ToolCall("c1", "act", "{}"),)))
    session.drain()
    with pytest.raises(SessionDraining):
        run_call(session, "c1", lambda: "x")


def test_a_file_changed_or_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    session = SessionStore(tmp_path / "a").open("s")
    session.append(make("user", "hello"))
    file = Path(session.hibernate())
    data = file.read_bytes()
    for at in range(len(data)):
        for broken in (data[:at], data[:at] + bytes((data[at] ^ 0x20,)) + data[at + 1 :]):
            file.write_bytes(broken)
            try:
                found = read_hibernated(file, sealer=None)
            except AgentRMError:
                continue
            assert [*found.records] == [*_records(data, tmp_path)]  # a change in a word nobody relies on


def _records(data: bytes, folder: Path) -> tuple[bytes, ...]:
    whole = folder / "whole"
    whole.write_bytes(data)
    return read_hibernated(whole, sealer=None).records


@pytest.mark.parametrize("op", ["open", "write", "fsync", "rename", "fsync_dir"])
def test_a_failed_hibernation_leaves_the_session_open_and_the_old_file(tmp_path: Path, op: str) -> None:
    disk = FaultyDisk()
    store = SessionStore(tmp_path, disk=disk)
    store.open("s").hibernate()
    file = store.layout.hibernated("default", "s")
    old = file.read_bytes()
    session = store.restore("s")
    session.append(make("user", "news"))
    session.flush()
    disk.fail(op, code=errno.EIO, written=5)
    with pytest.raises(WriteFailed):
        session.hibernate()
    if op != "fsync_dir":  # the rename has happened by then
        assert file.read_bytes() == old
    session.append(make("user", "more"))
    assert run_after(session) == file
    assert [p.name for p in file.parent.iterdir()] == ["s.session"]
    assert len(store.restore("s")) == 2


def run_after(session: Session) -> Path:
    return Path(session.hibernate())


def test_a_session_that_went_on_elsewhere_comes_back(tmp_path: Path) -> None:
    here, there = SessionStore(tmp_path / "here"), SessionStore(tmp_path / "there")
    session = here.open("s")
    session.append(make("user", "one"))
    moved = there.restore(Path(session.hibernate()))
    moved.append(make("user", "two"))
    back = here.restore(Path(moved.hibernate()))
    assert [m.text for m in back.messages()] == ["one", "two"]
    back.close()
    older = there.restore(there.layout.hibernated("default", "s"))
    assert [m.text for m in older.messages()] == ["one", "two"]


def test_two_different_histories_are_not_mixed(tmp_path: Path) -> None:
    here, there = SessionStore(tmp_path / "here"), SessionStore(tmp_path / "there")
    session = here.open("s")
    session.append(make("user", "one"))
    moved = there.restore(Path(session.hibernate()))
    moved.append(make("user", "two"))
    file = Path(moved.hibernate())
    with here.open("s") as session:
        session.append(make("user", "another two"))
    with pytest.raises(SessionForked, match="record 3"):
        here.restore(file)
    assert [m.text for m in here.read("s").messages()] == ["one", "another two"]
    both = here.restore(file, as_session="s2")
    assert [m.text for m in both.messages()] == ["one", "two"]
    with pytest.raises(SessionExists):
        here.restore(file, as_session="s")


def test_restoring_twice_here_runs_nothing_twice(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = store.open("s")
    session.append(Message("a", "assistant", (ToolCall("c1", "act", "{}"),)))
    session.await_approval("c1")
    session.enqueue(make("user", "queued", id="q"))
    file = Path(session.hibernate())
    ran = []
    for _ in range(2):
        session = store.restore(file)
        if session.open_calls():
            session.approve("c1")
        run_call(session, "c1", lambda: ran.append("c1") or "done")
        session.take()
        session.close()
    assert ran == ["c1"]
    assert [m.id for m in store.read("s").messages()].count("q") == 1


def test_a_file_that_refers_to_the_journal_is_small_and_needs_it(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "a", embed=False)
    session = store.open("s")
    session.extend(make("user", os.urandom(300).hex()) for _ in range(50))
    file = Path(session.hibernate())
    assert file.stat().st_size < 1000
    assert len(store.restore(file)) == 50
    with pytest.raises(SessionNotFound):
        SessionStore(tmp_path / "b").restore(file)


def test_the_header_can_be_read_without_the_key_and_the_rest_cannot(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, sealer=AesGcmSealer({"2025": os.urandom(32)}))
    session = store.open("s")
    session.append(make("user", "secret"))
    file = Path(session.hibernate())
    assert read_header(file)["sealed"] == "2025"
    with pytest.raises(WrongKey, match="'2025'"):
        read_hibernated(file, sealer=None)


def test_random_bytes_are_damaged_not_a_crash(tmp_path: Path, rng: random.Random) -> None:
    file = tmp_path / "x.session"
    for size in (0, 1, 16, 500):
        file.write_bytes(rng.randbytes(size))
        with pytest.raises(DamagedData):
            SessionStore(tmp_path / "s").restore(file)
