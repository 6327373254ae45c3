"""Sessions on disks that fail or are full, and under lock and key: nothing acknowledged is lost or to be read."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.context.sessions import SessionStore
from agentrm.storage import AesGcmSealer, FaultyDisk, StorageFull, WrongKey
from tests.sessions.compactors import KeepTwo
from tests.sessions.scene import texts, user


def test_a_full_disk_refuses_one_append_and_the_next_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    session = SessionStore(tmp_path, disk=disk).open("s")
    session.append(user("kept", "m1"))
    disk.fail("write", written=20)
    with pytest.raises(StorageFull):
        session.append(user("refused", "m2"))
    assert texts(session.messages()) == ["kept"]
    session.append(user("refused", "m2"))
    session.close()
    assert texts(SessionStore(tmp_path).open("s").messages()) == ["kept", "refused"]


_FULL = """
import resource, sys
from agentrm.context.messages import make
from agentrm.context.sessions import SessionStore
from agentrm.storage import SqliteStore, StorageFull
store = SessionStore(sys.argv[1], blobs=SqliteStore(None), fsync=sys.argv[2])
session = store.open("s")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
refused = 0
for number in range(100):
    message = make("user", "x" * 500, id=f"m{number}")
    try:
        session.append(message)
    except StorageFull:
        refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000 * (refused + 1), resource.RLIM_INFINITY))
        session.append(message)
session.close()
print(refused)
"""


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_a_real_limit_of_the_operating_system_costs_nothing(tmp_path: Path, fsync: str) -> None:
    out = subprocess.run([sys.executable, "-c", _FULL, tmp_path, fsync], capture_output=True, text=True, check=True)
    assert int(out.stdout) >= 1
    found = SessionStore(tmp_path).read("s")
    assert [m.id for m in found.messages()] == [f"m{n}" for n in range(100)]
    assert found.warnings == ()


def test_any_single_fault_anywhere_loses_nothing_acknowledged(tmp_path: Path, rng: random.Random) -> None:
    for trial in range(40):
        disk = FaultyDisk()
        root = tmp_path / str(trial)
        store = SessionStore(root, disk=disk, fsync=rng.choice(["always", "batch", "never"]), compactor=KeepTwo())
        session, acknowledged = store.open("s"), []
        op = rng.choice(["write", "fsync", "rename", "truncate", "fsync_dir"])
        disk.fail(op, after=rng.randrange(30), written=rng.randrange(40), times=rng.randrange(1, 4))
        for number in range(25):
            try:
                if number % 10 == 7:
                    session.compact(2)
                if number % 10 == 9:
                    session.hibernate()
                    session = store.restore("s")
                session.append(user(str(number), f"m{number}"))
                acknowledged.append(f"m{number}")
            except StorageFull:
                if session._closed:
                    session = store.open("s")
        disk.heal()
        session.close()
        assert [m.id for m in SessionStore(root).open("s").verbatim()] == acknowledged


def test_an_encrypted_session_is_unreadable_without_its_key(tmp_path: Path) -> None:
    key = os.urandom(32)
    secret = "the launch code is 4711"
    with SessionStore(tmp_path, sealer=AesGcmSealer({"k": key})) as store:
        session = store.open("s")
        session.append(user(secret))
        assert session.search("launch")
        session.hibernate()
    held = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"launch" not in held and b"launch".hex().encode() not in held
    for wrong in (None, AesGcmSealer({"k": os.urandom(32)})):
        with pytest.raises(WrongKey):
            SessionStore(tmp_path, sealer=wrong).open("s")
        with pytest.raises(WrongKey):
            SessionStore(tmp_path, sealer=wrong).restore("s")
    with SessionStore(tmp_path, sealer=AesGcmSealer({"k": key})) as store:
        assert texts(store.restore("s").messages()) == [secret]
