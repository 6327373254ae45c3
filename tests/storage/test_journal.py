"""The journal: what was acknowledged is there, whatever fails, and each failure has a way on."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from agentrm.storage import DamagedData, FaultyDisk, Journal, StorageFull, WriteFailed, read_journal
from agentrm.storage.frames import frame, scan


def payloads(journal: Journal | Path) -> list[bytes]:
    replay = read_journal(journal) if isinstance(journal, Path) else journal.opened
    return [record.payload for record in replay.records]


def filled(directory: Path, count: int, **options: object) -> Journal:
    journal = Journal(directory, **options)  # type: ignore[arg-type]
    for number in range(count):
        journal.append(b'{"n":%d}' % number)
    return journal


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    filled(tmp_path, 20).close()
    again = Journal(tmp_path)
    assert payloads(again) == [b'{"n":%d}' % n for n in range(20)]
    assert again.append(b"more").sequence == 21


def test_any_bytes_are_a_payload(tmp_path: Path, rng: random.Random) -> None:
    wanted = [rng.randbytes(rng.randrange(200)) for _ in range(50)] + [b"", b"\n", b"\n\n0000"]
    journal = Journal(tmp_path)
    journal.append_many(wanted)
    assert payloads(tmp_path) == wanted
    assert [journal.read_at(r.segment, r.offset, r.size) for r in journal] == wanted


def test_a_file_cut_at_any_byte_of_its_last_record_keeps_all_the_others(tmp_path: Path) -> None:
    filled(tmp_path / "whole", 5).close()
    whole = (tmp_path / "whole/000001.journal").read_bytes()
    start = scan(whole)[0][-1].offset
    for cut in range(start + 1, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "000001.journal").write_bytes(whole[:cut])
        journal = Journal(folder)
        assert len(journal.opened.records) == 4
        assert len(journal.opened.warnings) == 1
        journal.append(b"next")
        journal.close()
        sound = Journal(folder)
        assert payloads(sound)[-1] == b"next"
        assert sound.opened.warnings == ()


def test_the_torn_bytes_are_kept_beside_the_journal(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    path = tmp_path / "000001.journal"
    path.write_bytes(path.read_bytes()[:-3])
    Journal(tmp_path).close()
    assert b'{"n":' in (tmp_path / "000001.damaged").read_bytes()


def test_damage_in_the_middle_costs_that_record_and_is_reported(tmp_path: Path) -> None:
    filled(tmp_path, 10).close()
    path = tmp_path / "000001.journal"
    data = bytearray(path.read_bytes())
    fourth = scan(bytes(data))[0][3]
    data[fourth.offset + 35] ^= 1
    path.write_bytes(data)
    replay = read_journal(tmp_path)
    assert [r.sequence for r in replay.records] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert replay.missing == ((4, 4),)
    assert not replay.damage[0].at_tail


def test_random_damage_never_raises_and_never_invents_a_record(rng: random.Random) -> None:
    sound = [b"%d" % n * rng.randrange(1, 9) for n in range(30)]
    data = b"".join(frame(n, p) for n, p in enumerate(sound))
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        assert all(item.payload == sound[item.sequence] for item in scan(bytes(broken))[0])


def test_a_full_disk_loses_nothing_and_the_same_call_works_once_there_is_space(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = filled(tmp_path, 3, disk=disk)
    disk.fail("write", written=17)
    with pytest.raises(StorageFull, match="make the same call again"):
        journal.append(b"wanted")
    assert len(payloads(tmp_path)) == 3
    assert journal.append(b"wanted").sequence == 4
    assert read_journal(tmp_path).warnings == ()
    assert payloads(tmp_path)[-1] == b"wanted"


def test_a_half_written_record_that_cannot_be_cut_off_is_cut_off_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = filled(tmp_path, 3, disk=disk)
    disk.fail("write", written=17)
    disk.fail("truncate", code=errno.EIO)
    with pytest.raises(StorageFull):
        journal.append(b"lost")
    assert len(payloads(tmp_path)) == 3
    journal.append(b"kept")
    assert payloads(tmp_path)[3:] == [b"kept"]


@pytest.mark.parametrize("op", ["open", "write", "fsync", "fsync_dir", "truncate"])
@pytest.mark.parametrize("fsync", ["always", "batch", "never"])
def test_every_operation_may_fail_anywhere(tmp_path: Path, op: str, fsync: str, rng: random.Random) -> None:
    for after in range(12):
        disk, folder = FaultyDisk(), tmp_path / str(after)
        disk.fail(op, after=after, code=rng.choice([errno.EIO, errno.ENOSPC]), written=rng.randrange(20), times=2)
        acknowledged: list[bytes] = []
        try:
            journal = Journal(folder, fsync=fsync, batch_records=2, segment_bytes=150, disk=disk)  # type: ignore[arg-type]
        except WriteFailed:
            journal = Journal(folder, fsync=fsync, batch_records=2, segment_bytes=150)  # type: ignore[arg-type]
        for number in range(20):
            for _ in range(6):
                try:
                    journal.append(b"%d" % number)
                except WriteFailed:
                    continue
                acknowledged.append(b"%d" % number)
                break
        disk.heal()
        journal.close()
        assert acknowledged == [b"%d" % n for n in range(20)]
        assert payloads(folder) == acknowledged


def test_records_of_unknown_fate_are_written_again_after_a_failed_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = Journal(tmp_path, fsync="batch", batch_records=3, disk=disk)
    disk.fail("fsync", code=errno.EIO)
    for number in range(3):
        journal.append(b"%d" % number)
    (tmp_path / "000001.journal").write_bytes(b"")  # the kernel dropped the pages that it could not write
    journal.append(b"3")
    journal.close()
    assert payloads(tmp_path) == [b"0", b"1", b"2", b"3"]


def test_always_syncs_before_it_acknowledges_and_never_does_not_sync(tmp_path: Path) -> None:
    for fsync, syncs in (("always", 5), ("never", 0)):
        disk = FaultyDisk()
        filled(tmp_path / fsync, 5, fsync=fsync, disk=disk)
        assert disk.log.count("fsync") == syncs


def test_batch_syncs_by_number_and_by_time(tmp_path: Path) -> None:
    disk, now = FaultyDisk(), [0.0]
    journal = Journal(tmp_path, fsync="batch", batch_records=4, batch_s=10, disk=disk, monotonic=lambda: now[0])
    for _ in range(8):
        journal.append(b"x")
    assert disk.log.count("fsync") == 2
    journal.append(b"x")
    now[0] = 11
    journal.append(b"x")
    assert disk.log.count("fsync") == 3


def test_segments_are_rotated_and_read_as_one(tmp_path: Path) -> None:
    filled(tmp_path, 50, segment_bytes=300).close()
    assert len(list(tmp_path.glob("*.journal"))) > 3
    again = Journal(tmp_path, segment_bytes=300)
    assert payloads(again) == [b'{"n":%d}' % n for n in range(50)]
    assert again.append(b"x").sequence == 51


def test_a_missing_segment_is_reported(tmp_path: Path) -> None:
    filled(tmp_path, 50, segment_bytes=300).close()
    (tmp_path / "000002.journal").unlink()
    assert "are missing" in read_journal(tmp_path).warnings[0]


def test_reading_a_changed_record_by_place_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    record = journal.append(b"hello")
    path = tmp_path / "000001.journal"
    path.write_bytes(path.read_bytes().replace(b"hello", b"hullo"))
    with pytest.raises(DamagedData):
        journal.read_at(record.segment, record.offset, record.size)
