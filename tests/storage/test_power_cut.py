"""A power cut takes what was not synced: the table in `agentrm.storage.journal` says what that may be."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from agentrm.storage import Disk, Journal, read_journal, write_atomically


class LosingDisk(Disk):
    """Remembers what was synced. `cut` leaves of each file what a power cut leaves at the least."""

    def __init__(self) -> None:
        self._synced: dict[int, bytes] = {}  # by inode: content at the last sync
        self._named: dict[Path, int] = {}  # names that a directory sync has made durable
        self._seen: set[Path] = set()

    def _open(self, path: Path, fd: int) -> int:
        self._seen.add(path)
        self._synced.setdefault(os.fstat(fd).st_ino, b"")
        return fd

    def open_append(self, path: Path) -> int:
        return self._open(path, super().open_append(path))

    def create(self, path: Path) -> int:
        return self._open(path, super().create(path))

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._synced[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").resolve().read_bytes()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._seen.add(target)

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        here = {name for name in self._seen if name.parent == path}
        self._named.update({name: name.stat().st_ino for name in here if name.exists()})

    def cut(self) -> None:
        for path in self._seen:
            inode = self._named.get(path)
            if inode is None:
                path.unlink(missing_ok=True)
            else:
                path.unlink(missing_ok=True)
                path.write_bytes(self._synced[inode])


def numbers(folder: Path) -> list[int]:
    replay = read_journal(folder)
    assert replay.missing == ()
    return [int(record.payload) for record in replay.records]


@pytest.mark.parametrize(("fsync", "may_lose"), [("always", 0), ("batch", 5)])
def test_a_power_cut_takes_no_more_than_the_setting_allows(
    tmp_path: Path, rng: random.Random, fsync: str, may_lose: int
) -> None:
    for trial in range(20):
        disk, folder = LosingDisk(), tmp_path / str(trial)
        journal = Journal(
            folder,
            fsync=fsync,
            batch_records=5,
            batch_s=1e9,
            segment_bytes=300,
            disk=disk,  # type: ignore[arg-type]
        )
        count = rng.randrange(1, 60)
        for number in range(count):
            journal.append(b"%d" % number)
        disk.cut()
        kept = numbers(folder)
        assert kept == list(range(len(kept)))
        assert count - len(kept) <= may_lose
        again = Journal(folder, fsync="never")
        again.append(b"%d" % len(kept))
        again.close()
        assert numbers(folder) == list(range(len(kept) + 1))


def test_flush_and_close_and_adopt_leave_nothing_to_lose(tmp_path: Path) -> None:
    for deed in ("flush", "close", "adopt"):
        disk = LosingDisk()
        journal = Journal(tmp_path / deed, batch_s=1e9, disk=disk)
        for number in range(3):
            journal.append(b"%d" % number)
        if deed == "adopt":
            journal.adopt([b"3", b"4"])
        else:
            getattr(journal, deed)()
        disk.cut()
        assert numbers(tmp_path / deed) == list(range(5 if deed == "adopt" else 3))


def test_an_atomic_write_is_old_or_new_after_a_power_cut(tmp_path: Path) -> None:
    disk, path = LosingDisk(), tmp_path / "f"
    write_atomically(path, b"old", disk=disk)
    write_atomically(path, b"new", disk=disk)
    disk.cut()
    assert path.read_bytes() == b"new"
