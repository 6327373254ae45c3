"""Environments of this machine: a folder, and processes that end with it. They isolate nothing else, and a process that
was started without its environment variables in a session of its own is not found: they are no sandbox."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

from agentrm.tools.place import Completed, Place, Usage
from agentrm.tools.processes import end, listening_ports, marked, start, wait_exit, wait_unborn

__all__ = ["LocalProvider", "disk_bytes", "remove_folder"]

MOST_OUTPUT = 1_000_000
"""Bytes kept of each output of a command."""
LOG = "server.log"


class LocalProvider:
    """See the module. What a server prints goes to `server.log` in the folder beside that of the environment's files.

    A command is over when its own process has ended; what it left behind is ended then, too. Output goes through files,
    so nobody waits for a descendant that keeps it open.
    """

    def __init__(self) -> None:
        self._runs = count(1)
        self._servers: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._lock = threading.Lock()

    def create(self, place: Place) -> None:
        place.files.mkdir(parents=True, exist_ok=True)

    def remove(self, place: Place) -> None:
        with self._lock:
            servers = self._servers.pop(place.id, [])
        end(lambda: marked({place.id}), place.grace_s, *servers)
        for server in servers:
            server.wait()
        remove_folder(place.folder)  # from here on none can begin in it
        if wait_unborn(place.id, place.folder):
            end(lambda: marked({place.id}), 0.0)

    def is_there(self, place: Place) -> bool:
        return place.files.is_dir() and all(one.poll() is None for one in self._servers.get(place.id, ()))

    def run(self, place: Place, words: Sequence[str], timeout_s: float | None, stop_fd: int) -> Completed:
        number, began = next(self._runs), time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._start(place, words, number, out, err)
            timed_out = False
            try:
                ended = wait_exit(process, timeout_s, stop_fd)
                timed_out = not ended and timeout_s is not None and time.monotonic() - began >= timeout_s
            finally:
                run = number
                end(lambda: [one for one in marked({place.id}) if one.run == run], place.grace_s, process)
                process.wait()
            took = time.monotonic() - began
            return Completed(process.returncode, _text(out), _text(err), timed_out, took)

    def serve(self, place: Place, words: Sequence[str]) -> None:
        with open(place.folder / LOG, "ab") as log:
            server = self._start(place, words, 0, log, log)
        with self._lock:
            kept = [one for one in self._servers.get(place.id, ()) if one.poll() is None]
            self._servers[place.id] = [*kept, server]

    def usage(self, place: Place) -> Usage:
        processes = marked({place.id})
        return Usage(disk_bytes(place.folder), len(processes), listening_ports(processes))

    def _start(
        self, place: Place, words: Sequence[str], run: int, out: IO[bytes], err: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return start(
            place.filled(words), environment=place.id, run=run, folder=place.files, variables=place.variables,
            out=out, err=err,
        )  # fmt: skip


def _text(file: IO[bytes]) -> str:
    """What was written, without its middle if it is long."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= MOST_OUTPUT:
        return file.read().decode("utf-8", "replace")
    head = file.read(MOST_OUTPUT // 2).decode("utf-8", "replace")
    file.seek(size - MOST_OUTPUT // 2)
    return f"{head}\n[... {size - MOST_OUTPUT} bytes left out ...]\n{file.read().decode('utf-8', 'replace')}"


def disk_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take up on the disk. What disappears meanwhile does not count, nor what lies
    too deep to be named."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        one = waiting.pop()
        with suppress(OSError):
            total += os.lstat(one).st_blocks * 512
            with os.scandir(one) as found:
                for entry in found:
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def remove_folder(folder: Path) -> None:
    """Removes a folder and all below it, also what was made read-only or lies thousands of levels deep; of a link the
    link alone. Raises OSError for what can't be removed."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    with suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    with suppress(FileNotFoundError):
        _flatten(folder)
        shutil.rmtree(folder)


def _flatten(folder: Path) -> None:
    """Opens everything below to us and moves folders up, so that no path gets long."""
    os.chmod(folder, stat.S_IRWXU)
    waiting = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    while waiting:
        one = waiting.pop()
        with suppress(FileNotFoundError):  # somebody else removes it at the same time
            os.chmod(one, stat.S_IRWXU)
            for entry in os.scandir(one):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IRWXU)  # else it can't be moved
                    above = os.path.join(folder, f".{uuid.uuid4().hex}")
                    os.rename(entry.path, above)
                    waiting.append(above)
                else:
                    os.unlink(entry.path)
            os.rmdir(one)
