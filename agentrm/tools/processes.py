"""Processes of tool environments: started so that they can all be found and ended, whatever became of their starter.

Every process carries a mark in its environment variables, which its children inherit: the environment's id and the
number of the run, behind those of the environment that its owner itself runs in, if there is one. So those are found
too that left the process group, lost their parent, or outlived their owner. A signal goes through a descriptor of the
very process that was looked at (pidfd), so a process id that was given to somebody else in between is never hit.

A process shows its mark from its exec on. One that was forked and has not got that far when its starter is killed is
told by its folder, which it enters first: `wait_unborn`.

Needs Linux's /proc for that. Elsewhere only the process group of each command is known.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from agentrm.core.kernel import process_started

__all__ = ["Marked", "end", "listening_ports", "marked", "readable", "start", "wait_exit", "wait_unborn"]

MARK = "AGENTRM_ENVIRONMENT"
LINUX = sys.platform == "linux"
UNBORN_S = 1.0
_LONGEST_POLL_S = 2_000_000.0
"""The system counts no longer wait (its milliseconds have 31 bits)."""
_ROUNDS = 100
"""Times that processes are looked for again, because those that were ended had started others."""


@dataclass(frozen=True, slots=True)
class Marked:
    """One process of an environment. `run`: the number of the run, 0 for what lasts as long as the environment.
    `started`: clock ticks since the machine started, so that another process with the same id is told apart."""

    pid: int
    started: int
    environment: str
    run: int


def start(
    words: Sequence[str],
    *,
    environment: str,
    run: int,
    folder: str | os.PathLike[str],
    variables: Mapping[str, str],
    out: IO[bytes] | int,
    err: IO[bytes] | int,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, with the marks. Raises OSError if it can't be started."""
    return subprocess.Popen(
        list(words),
        cwd=folder,
        env={**os.environ, **variables, MARK: f"{os.environ.get(MARK, '')} {environment}/{run}".strip()},
        stdin=stdin,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def marked(environments: Collection[str]) -> list[Marked]:
    """All live processes of these environments that this user may look at."""
    if not LINUX or not environments:
        return []
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it ended, or is somebody else's
                for environment, run in _marks(entry.name):
                    if environment in environments:
                        pid = int(entry.name)
                        found.append(Marked(pid, process_started(pid), environment, run))
    return [one for one in found if one.started]


def wait_unborn(environment: str, folder: str | os.PathLike[str]) -> bool:
    """Waits, a second at most, for processes that stand in or below the environment's folder without its mark, until
    they show it, as those do that were just being started, or are gone. Whether there were any. Somebody's shell may
    stand there too: it is left alone."""
    real, until = os.path.realpath(folder), time.monotonic() + UNBORN_S
    found = left = _unmarked_in(real, environment)
    while left and time.monotonic() < until:
        _glance()
        left = found & _unmarked_in(real, environment)
    return bool(found)


def _unmarked_in(folder: str, environment: str) -> set[int]:
    found = set()
    for entry in os.scandir("/proc") if LINUX else ():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended, or is somebody else's
                at = os.readlink(f"/proc/{entry.name}/cwd")  # with " (deleted)" behind what was removed
                if f"{at.removesuffix(' (deleted)')}/".startswith(f"{folder}/"):
                    if environment not in dict(_marks(entry.name)):
                        found.add(int(entry.name))
    return found


def _glance() -> None:
    """Nothing tells when a process reaches its exec."""
    time.sleep(0.002)


def _marks(pid: str) -> list[tuple[str, int]]:
    """The environments of a process, the outermost first, and their runs; what is no mark of ours is none."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        block = file.read()
    start = f"{MARK}=".encode()
    if start not in block:
        return []
    values = [item[len(start) :].decode("utf-8", "replace") for item in block.split(b"\0") if item.startswith(start)]
    parts = [word.rpartition("/") for value in values for word in value.split(" ")]
    return [(environment, int(run)) for environment, _, run in parts if environment and run.isdigit()]


def readable(fds: Collection[int], timeout_s: float | None) -> set[int]:
    """Those of the descriptors (negative ones do not count) that have become readable, or whose other end is closed;
    waits for the first, `timeout_s` seconds at most."""
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN | select.POLLHUP)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = _LONGEST_POLL_S if until is None else min(_LONGEST_POLL_S, max(0.0, until - time.monotonic()))
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        if ready or left < _LONGEST_POLL_S:
            return ready


def wait_exit(process: subprocess.Popen[bytes], timeout_s: float | None, stop_fd: int = -1) -> bool:
    """Waits until the process has ended, without reaping it; False if `timeout_s` seconds passed or `stop_fd` became
    readable first."""
    if not hasattr(os, "pidfd_open"):
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        return process.returncode is not None
    if process.returncode is not None:
        return True
    fd = os.pidfd_open(process.pid)
    try:
        return fd in readable((fd, stop_fd), timeout_s)
    finally:
        os.close(fd)


def end(find: Callable[[], list[Marked]], grace_s: float, *leaders: subprocess.Popen[bytes]) -> int:
    """Ends what `find` finds, and the process groups of `leaders`, which must not have been reaped: asks politely,
    waits at most `grace_s` seconds, then kills, until nothing is found any more. Returns how many were found at first.
    Raises RuntimeError if new ones are found for ever."""
    for leader in leaders:
        _signal_group(leader, signal.SIGTERM)
    first = find()
    if not first and not leaders:
        return 0
    if grace_s > 0:
        _tell(first, signal.SIGTERM)
    if grace_s > 0:
        _wait_all(find, first, leaders, grace_s)
    for leader in leaders:
        _signal_group(leader, signal.SIGKILL)
    for _ in range(_ROUNDS):
        left = find()
        if not left:
            return len(first)
        _tell(left, signal.SIGKILL)
        _wait_gone(left, 1.0)
    raise RuntimeError(f"{len(left)} processes start others faster than they can be ended: {left[:3]}")


def _signal_group(leader: subprocess.Popen[bytes], number: int) -> None:
    if leader.returncode is None:  # not reaped: its process id, and so the group's, can't be anybody else's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, number)


def _open(one: Marked) -> int | None:
    """A descriptor of the process, if it still is that process."""
    try:
        fd = os.pidfd_open(one.pid)
    except OSError:
        return None
    if process_started(one.pid) != one.started:
        os.close(fd)
        return None
    return fd


def _tell(processes: list[Marked], number: int) -> None:
    for one in processes:
        fd = _open(one)
        if fd is not None:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, number)
            os.close(fd)


def _wait_all(
    find: Callable[[], list[Marked]], first: list[Marked], leaders: Sequence[subprocess.Popen[bytes]], grace_s: float
) -> None:
    until = time.monotonic() + grace_s
    while True:
        _wait_gone(first, until - time.monotonic())
        for leader in leaders:
            wait_exit(leader, until - time.monotonic())
        first = find()
        if not first or time.monotonic() >= until:
            return


def _wait_gone(processes: list[Marked], timeout_s: float) -> None:
    """Waits until none of them runs."""
    until = time.monotonic() + timeout_s
    for one in processes:
        fd = _open(one)
        if fd is not None:
            readable((fd,), until - time.monotonic())
            os.close(fd)


def listening_ports(processes: Sequence[Marked]) -> tuple[int, ...]:
    """TCP ports on which these processes listen."""
    inodes: set[str] = set()
    for one in processes:
        with suppress(OSError):  # it ended meanwhile
            for entry in os.scandir(f"/proc/{one.pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    ports: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6") if inodes else ():
        with suppress(OSError), open(table) as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return tuple(sorted(ports))
