"""The few operations of the operating system that storage relies on, as one object that tests can replace.

Everything written by agentrm goes through a `Disk`; reads do not (a failing read is an OSError with its
path). `FaultyDisk` fails on command, so that each write, sync and rename of a store can be made to break
once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from agentrm.storage.errors import write_error

__all__ = ["Disk", "FaultyDisk", "write_atomically"]

_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Disk:
    """The real operating system. Every method raises OSError unchanged."""

    def open_append(self, path: Path) -> int:
        """A descriptor for appending; the file is made if needed, readable by its owner only."""
        return os.open(path, os.O_CREAT | os.O_APPEND | _FLAGS, 0o600)

    def create(self, path: Path) -> int:
        """A descriptor of a new, empty file, readable by its owner only."""
        return os.open(path, os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)

    def write(self, fd: int, data: bytes) -> int:
        """Writes some of `data` and returns how many bytes."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` in one step."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync_dir(self, path: Path) -> None:
        """Makes a rename or a new file name durable (where directories can be opened)."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except PermissionError:  # Windows opens no directories, and needs no sync of them
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, path: Path, *, durable: bool = True) -> None:
        """The folder and what is missing above it, for its owner only; `durable`: the names survive a power cut."""
        if path.is_dir():
            return
        self.make_folder(path.parent, durable=durable)
        path.mkdir(exist_ok=True, mode=0o700)
        if durable:
            self.fsync_dir(path.parent)

    def write_all(self, fd: int, data: bytes) -> None:
        """Writes all of `data`. After an error an unknown part of it may have been written."""
        view = memoryview(data)
        while view:
            done = self.write(fd, bytes(view) if len(view) != len(data) else data)
            view = view[done:]


class FaultyDisk(Disk):
    """A disk that fails on command, for tests of what happens then.

    `fail("write", after=3, written=10)` lets three writes pass and fails the fourth after ten of its bytes.
    `log` lists the operations in order. `on` is called before each operation (a test kills the process
    there).
    """

    def __init__(self, on: Callable[[str], None] | None = None) -> None:
        self.log: list[str] = []
        self._on = on
        self._faults: dict[str, list[list[int]]] = {}

    def fail(self, op: str, *, after: int = 0, code: int = errno.ENOSPC, written: int = 0, times: int = 1) -> None:
        """Makes the operation `op` fail with errno `code`, `times` times, once `after` further ones have
        passed.
        """
        self._faults.setdefault(op, []).append([after, code, written, times])

    def heal(self) -> None:
        """Forgets all faults that have not happened yet."""
        self._faults.clear()

    def _step(self, op: str) -> int | None:
        """None, or how many bytes to write before failing; raises for operations other than write."""
        self.log.append(op)
        if self._on is not None:
            self._on(op)
        for fault in self._faults.get(op, []):
            if fault[0] > 0:
                fault[0] -= 1
                continue
            if fault[3] <= 0:
                continue
            fault[3] -= 1
            if op == "write":
                self._code = fault[1]
                return fault[2]
            raise OSError(fault[1], os.strerror(fault[1]))
        return None

    def open_append(self, path: Path) -> int:
        self._step("open")
        return super().open_append(path)

    def create(self, path: Path) -> int:
        self._step("open")
        return super().create(path)

    def write(self, fd: int, data: bytes) -> int:
        part = self._step("write")
        if part is None:
            return super().write(fd, data)
        if part:
            super().write(fd, data[:part])
        raise OSError(self._code, os.strerror(self._code))

    def fsync(self, fd: int) -> None:
        self._step("fsync")
        super().fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._step("truncate")
        super().truncate(fd, length)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        self._step("fsync_dir")
        super().fsync_dir(path)


def write_atomically(path: Path, data: bytes, *, disk: Disk, durable: bool = True) -> None:
    """Puts `data` at `path`: afterwards the file holds either what it held before or all of `data`.

    `durable` syncs the file before and the directory after the rename, so that this also holds over a power
    cut. Raises WriteFailed or StorageFull; what stood at `path` is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = disk.create(temporary)
        try:
            disk.write_all(fd, data)
            if durable:
                disk.fsync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, path)
        if durable:
            disk.fsync_dir(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # the error to report is the first one
            disk.unlink(temporary)
        raise write_error(str(path), "writing", error) from error
