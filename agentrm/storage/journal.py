"""An append-only journal in a folder: what was acknowledged stays, whatever is killed, torn or full.

What an acknowledged `append` survives is the caller's choice:

| fsync    | the process is killed | power cut                                                         |
|----------|-----------------------|-------------------------------------------------------------------|
| "always" | yes                   | yes                                                               |
| "batch"  | yes                   | all but the last `batch_records` records (or those since `flush`) |
| "never"  | yes                   | what the operating system had written out by itself (seconds)     |

A write that fails (disk full, I/O error) raises, is not acknowledged, and leaves the journal usable: the next
append cuts the half-written record off first. After a *sync* that fails the kernel may have dropped pages
without saying so again, so the records since the last good sync are written once more, into a new segment;
readers drop the doubles by their sequence numbers. Opening cuts off a torn tail (its bytes are kept in a
`.damaged` file) and reports it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from agentrm.errors import ConfigError
from agentrm.storage.disk import Disk, write_atomically
from agentrm.storage.errors import DamagedData, StorageError, WrongKey, write_error
from agentrm.storage.frames import Damage, Frame, frame, scan
from agentrm.storage.sealing import Sealer, key_id_of

__all__ = ["Fsync", "Journal", "Record", "Replay", "read_journal"]

Fsync = Literal["always", "batch", "never"]
_SUFFIX = ".journal"


class Record(NamedTuple):  # for the same reason as Frame
    """One record as read back. `segment` and `offset` find it again (`Journal.read_at`)."""

    sequence: int  # from 1, without gaps unless records were lost
    payload: bytes
    segment: int
    offset: int
    size: int  # bytes in the file

    def __repr__(self) -> str:  # without the payload, which may be secret
        return f"<Record {self.sequence} {len(self.payload)} bytes>"


@dataclass(frozen=True, slots=True)
class Replay:
    """All that a journal holds, and what is wrong with it."""

    records: tuple[Record, ...]
    damage: tuple[Damage, ...]
    missing: tuple[tuple[int, int], ...]  # first and last of each run of lost records

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was found damaged or missing, one line each; empty for a sound journal."""
        gaps = tuple(f"records {first} to {last} are missing" for first, last in self.missing)
        return tuple(str(item) for item in self.damage) + gaps


def _segments(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    found = [(int(p.stem), p) for p in directory.iterdir() if p.suffix == _SUFFIX and p.stem.isdigit()]
    return sorted(found)


def _context(context: bytes, sequence: int) -> bytes:
    return context + b"\0%d" % sequence


def _plain(item: Frame, sealer: Sealer | None, context: bytes) -> bytes:
    if not item.sealed:
        return item.payload
    if sealer is None:
        raise WrongKey(context.decode("utf-8", "replace").replace("\0", "/"), key_id_of(item.payload), ())
    return sealer.unseal(item.payload, _context(context, item.sequence))


def read_journal(directory: Path, *, sealer: Sealer | None = None, context: bytes = b"") -> Replay:
    """Reads a journal without changing it or taking part in it. Raises WrongKey for sealed records without
    their key.
    """
    records: list[Record] = []
    damage: list[Damage] = []
    missing: list[tuple[int, int]] = []
    last = 0
    for number, path in _segments(directory):
        frames, bad = scan(path.read_bytes(), path.name)
        damage.extend(bad)
        for item in frames:
            if item.sequence <= last:  # written again after a failed sync
                continue
            if item.sequence > last + 1:
                missing.append((last + 1, item.sequence - 1))
            last = item.sequence
            records.append(Record(last, _plain(item, sealer, context), number, item.offset, item.size))
    return Replay(tuple(records), tuple(damage), tuple(missing))


class Journal:
    """The writing side. One writer at a time per folder (sessions hold a lock for that); threads may share
    it.

    `opened` holds what was found; drop it (`forget_opened`) once it was read. `batch_records` and `batch_s`
    (seconds) bound what a power cut can take with fsync="batch"; the time is looked at on the next append.
    `segment_bytes` is where a new file is begun. `replay` saves reading what the caller has just read. Raises
    ConfigError for values out of range, WrongKey, WriteFailed and StorageFull.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fsync: Fsync = "batch",
        batch_records: int = 64,
        batch_s: float = 1.0,
        segment_bytes: int = 16 << 20,
        disk: Disk | None = None,
        sealer: Sealer | None = None,
        context: bytes = b"",
        replay: Replay | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if fsync not in ("always", "batch", "never"):
            raise ConfigError("fsync", fsync, '"always", "batch" or "never"')
        if batch_records < 1 or batch_s < 0 or segment_bytes < 1:
            given = (batch_records, batch_s, segment_bytes)
            raise ConfigError("batch_records, batch_s, segment_bytes", given, "> 0")
        self._directory, self._fsync, self._disk = directory, fsync, disk or Disk()
        self._batch_records, self._batch_s, self._segment_bytes = batch_records, batch_s, segment_bytes
        self._sealer, self._context, self._monotonic = sealer, context, monotonic
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._unsynced: list[bytes] = []  # frames since the last good sync; kept only where syncs happen
        self._unsynced_since = 0.0
        self._dirty = False  # bytes of a failed write may stand beyond _size
        self._suspect = False  # a sync failed: the frames since the last good one must be written again
        self._closed = False
        self._sync_error = OSError()
        try:
            self._disk.make_folder(directory, durable=fsync != "never")
        except OSError as error:
            raise write_error(str(directory), "making", error) from error
        self.opened = replay or read_journal(directory, sealer=sealer, context=context)
        self._sequence = self.opened.records[-1].sequence if self.opened.records else 0
        segments = _segments(directory)
        self._segment = segments[-1][0] if segments else 1
        self._size = self._path.stat().st_size if segments else 0
        self._bytes = sum(path.stat().st_size for _, path in segments)
        self._cut_torn_tail()

    def __repr__(self) -> str:
        return f"<Journal {self._directory} records={self._sequence} bytes={self._bytes} fsync={self._fsync}>"

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._segment:06d}{_SUFFIX}"

    def forget_opened(self) -> None:
        """Frees the memory of `opened`."""
        self.opened = Replay((), (), ())

    def _cut_torn_tail(self) -> None:
        tails = [item for item in self.opened.damage if item.at_tail and item.file == self._path.name]
        if not tails:
            return
        torn = self._path.read_bytes()[tails[0].offset :]
        try:
            kept = self._disk.open_append(self._path.with_suffix(".damaged"))
            try:
                self._disk.write_all(kept, torn)
            finally:
                self._disk.close(kept)
        except OSError:
            # Without space for the copy the tail stays where it is: a new segment begins after it, readers
            # skip it.
            self._segment += 1
            self._size = 0
            return
        self._size, self._dirty = tails[0].offset, True
        self._bytes -= tails[0].size
        self._ready()

    # -- writing

    def append(self, payload: bytes) -> Record:
        """Stores one record; returning is the acknowledgement (the table above says of what)."""
        return self.append_many((payload,))[0]

    def append_many(self, payloads: Sequence[bytes]) -> list[Record]:
        """Stores several records with one write and at most one sync; all are acknowledged or none."""
        with self._lock:
            if self._closed:
                raise StorageError(f"{self._directory}: append to a closed journal. Open the session again.")
            self._ready()
            frames, records = self._frames(payloads, self._segment, self._size)
            self._write(b"".join(frames))
            if self._fsync != "never":
                if not self._unsynced:
                    self._unsynced_since = self._monotonic()
                self._unsynced.extend(frames)
                if self._fsync == "always" and not self._synced(len(frames)):
                    raise write_error(str(self._path), "syncing", self._sync_error)
            written = sum(map(len, frames))
            self._bytes += written
            self._size, self._sequence = self._size + written, self._sequence + len(records)
            if self._fsync == "batch" and self._batch_full():
                # These records are acknowledged for a killed process already. If the sync fails they are
                # written again before the next one, so a failure here is not theirs to report.
                self._synced(0)
            return records

    def adopt(self, payloads: Sequence[bytes]) -> list[Record]:
        """Stores many records in one step, as a segment of their own: after a crash all are there, or none."""
        with self._lock:
            if self._closed:
                raise StorageError(f"{self._directory}: append to a closed journal. Open the session again.")
            self._flush()
            if self._fd is not None:
                self._disk.close(self._fd)
                self._fd = None
            number = self._segment + 1 if self._bytes else self._segment
            frames, records = self._frames(payloads, number, 0)
            path = self._directory / f"{number:06d}{_SUFFIX}"
            write_atomically(path, b"".join(frames), disk=self._disk, durable=self._fsync != "never")
            self._segment, self._sequence = number, self._sequence + len(records)
            self._size = sum(map(len, frames))
            self._bytes += self._size
            return records

    def _frames(self, payloads: Sequence[bytes], segment: int, at: int) -> tuple[list[bytes], list[Record]]:
        """The next records as bytes, and where they will stand."""
        frames, records = [], []
        for sequence, payload in enumerate(payloads, self._sequence + 1):
            stored = payload
            if self._sealer is not None:
                stored = self._sealer.seal(payload, _context(self._context, sequence))
            item = frame(sequence, stored, sealed=self._sealer is not None)
            frames.append(item)
            records.append(Record(sequence, payload, segment, at, len(item)))
            at += len(item)
        return frames, records

    def _batch_full(self) -> bool:
        if len(self._unsynced) >= self._batch_records:
            return True
        return self._monotonic() - self._unsynced_since >= self._batch_s

    def _ready(self) -> None:
        """Repairs what an earlier failure left and makes sure there is a segment with room."""
        try:
            if self._suspect:
                self._write_again()
            if self._fd is not None and self._size >= self._segment_bytes:
                if self._unsynced and not self._synced(0):
                    raise self._sync_error
                self._disk.close(self._fd)
                self._fd, self._segment, self._size = None, self._segment + 1, 0
            if self._fd is None:
                self._fd = self._open_segment()
            if self._dirty:
                self._disk.truncate(self._fd, self._size)
                self._dirty = False
        except OSError as error:
            raise write_error(str(self._path), "repairing", error) from error

    def _open_segment(self) -> int:
        fd = self._disk.open_append(self._path)
        if self._fsync != "never":
            try:
                self._disk.fsync_dir(self._directory)
            except OSError:
                self._disk.close(fd)
                raise
        return fd

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        try:
            self._disk.write_all(self._fd, data)
        except OSError as error:
            self._dirty = True
            try:
                self._disk.truncate(self._fd, self._size)
                self._dirty = False
            except OSError:
                pass  # the next append tries again, and opening skips the torn record
            raise write_error(str(self._path), "writing", error) from error

    def _synced(self, unacknowledged: int) -> bool:
        """Syncs. On failure keeps the frames to be written again, without the last `unacknowledged` ones."""
        assert self._fd is not None
        try:
            self._disk.fsync(self._fd)
        except OSError as error:
            self._sync_error = error
            self._suspect = True
            if unacknowledged:
                del self._unsynced[-unacknowledged:]
                self._dirty = True
            return False
        self._unsynced.clear()
        return True

    def _write_again(self) -> None:
        """After a failed sync: a new segment with the records whose fate on the disk is unknown."""
        if self._fd is not None:
            if self._dirty:
                self._disk.truncate(self._fd, self._size)
                self._dirty = False
            self._disk.close(self._fd)
            self._fd = None
        self._segment += 1
        fd = self._disk.create(self._path)
        data = b"".join(self._unsynced)
        try:
            self._disk.write_all(fd, data)
            self._disk.fsync(fd)
            self._disk.fsync_dir(self._directory)
        except OSError:
            self._disk.close(fd)
            raise
        self._disk.close(fd)
        self._fd = self._disk.open_append(self._path)
        self._size = len(data)
        self._bytes += len(data)
        self._unsynced.clear()
        self._suspect = False

    def flush(self) -> None:
        """Syncs what was appended (nothing to do with fsync="never"). Raises WriteFailed; call again to
        retry.
        """
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._closed or self._fsync == "never":
            return
        if self._suspect:
            self._ready()
        if self._unsynced and not self._synced(0):
            raise write_error(str(self._path), "syncing", self._sync_error)

    def close(self) -> None:
        """Flushes and lets go of the file. Closing twice is fine. The file is let go even if the flush
        raises.
        """
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
            finally:
                self._closed = True
                if self._fd is not None:
                    self._disk.close(self._fd)
                    self._fd = None

    # -- reading

    def read_at(self, record_segment: int, offset: int, size: int) -> bytes:
        """The payload of one acknowledged record. Raises DamagedData if its checksum fails."""
        path = self._directory / f"{record_segment:06d}{_SUFFIX}"
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            frames, _ = scan(file.read(size), path.name)
        if len(frames) != 1 or frames[0].size != size:
            raise DamagedData(f"{path} at offset {offset}", "the record's checksum does not fit")
        return _plain(frames[0], self._sealer, self._context)

    def __iter__(self) -> Iterator[Record]:
        """All acknowledged records, read anew from the files."""
        return iter(read_journal(self._directory, sealer=self._sealer, context=self._context).records)
