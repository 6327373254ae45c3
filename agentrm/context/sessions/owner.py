"""Who owns a session: one process at a time, and what a dead one held can be taken over.

The owner file names the owner (host, boot, process id and its start time, a nonce) and is locked with
`flock` for as long as the owner lives, so the kernel itself says whether it does, also across containers. A
lock that outlives its process (a forked child inherited the descriptor) is recognised by process id and
start time. An owner on another machine can't be judged from here: that takes `takeover=True`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agentrm.context.sessions.errors import SessionLocked, SessionLost

__all__ = ["Owner", "OwnerLock", "owner_of"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One process as an owner.

    `started` and `namespace` come from the kernel, `since` is in seconds since 1970.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    nonce: str
    since: float


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # no such kernel interface here: the comparison then rests on the other fields


def _started(pid: int) -> str:
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[19] if stat else ""  # field 22, counted from behind the name


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _myself(since: float) -> Owner:
    pid = os.getpid()
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    return Owner(socket.gethostname(), boot, _namespace(), pid, _started(pid), uuid.uuid4().hex, since)


def _is_dead(owner: Owner, me: Owner) -> bool:
    """True only if it is certain: same kernel, same process namespace, and no such process."""
    if owner.boot != me.boot or owner.namespace != me.namespace:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return bool(owner.started) and _started(owner.pid) != owner.started


def _is_elsewhere(owner: Owner, me: Owner) -> bool:
    """On another machine, whose locks this kernel may not see. Containers of one kernel share its boot id."""
    return owner.host != me.host and (owner.boot != me.boot or not me.boot)


def _parse(data: bytes) -> Owner | None:
    try:
        return Owner(**json.loads(data)) if data else None
    except (ValueError, TypeError):
        return None  # its writer died half-way; it held no lock worth the name


def owner_of(path: Path) -> Owner | None:
    """The owner that the file names and that may be alive; None if nobody holds it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        owner = _parse(os.pread(fd, 4096, 0))
        if owner is None or _is_dead(owner, _myself(0)):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return owner
        return owner if _is_elsewhere(owner, _myself(0)) else None
    finally:
        os.close(fd)


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Lets one process at a time judge and change the owner file; held for microseconds."""
    fd = os.open(path.with_suffix(".guard"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class OwnerLock:
    """Ownership of one session, from `acquire` to `release` or the end of the process.

    `predecessor` is the owner that died while it held the session; None after a clean release.
    """

    __slots__ = ("_fd", "_name", "_path", "owner", "predecessor")

    def __init__(self, path: Path, name: str, fd: int, owner: Owner, predecessor: Owner | None) -> None:
        self._path, self._name, self._fd = path, name, fd
        self.owner, self.predecessor = owner, predecessor

    @classmethod
    def acquire(cls, path: Path, name: str, *, wall: Callable[[], float], takeover: bool = False) -> OwnerLock:
        """Becomes the owner, or raises SessionLocked. Never waits for another owner.

        `takeover` makes an owner whose death can't be proved lose the session; its next write raises
        SessionLost.
        """
        me = _myself(wall())
        with _guard(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                before = _parse(os.pread(fd, 4096, 0))
                locked = True
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked = False
                if locked:
                    if before is not None and _is_elsewhere(before, me) and not takeover:
                        raise SessionLocked(name, before)
                else:
                    if not takeover and (before is None or not _is_dead(before, me)):
                        raise SessionLocked(name, before)
                    os.close(fd)
                    fd = cls._replace(path)
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
            except BaseException:
                os.close(fd)
                raise
        return cls(path, name, fd, me, before)

    @staticmethod
    def _replace(path: Path) -> int:
        """A new owner file in place of one whose lock can't be had;

        the old one's owner sees its link count go.
        """
        new = path.with_suffix(".new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(new, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def check(self) -> None:
        """Raises SessionLost if this process is not the owner (any more). About a microsecond."""
        if os.getpid() != self.owner.pid:
            raise SessionLost(self._name, "belongs to the process that this one was forked from")
        if self._fd < 0 or os.fstat(self._fd).st_nlink == 0:
            raise SessionLost(self._name, "was taken over by another owner")

    def release(self) -> None:
        """Gives the session up. Releasing twice, or in a forked child, is fine."""
        if self._fd < 0:
            return
        if os.getpid() == self.owner.pid and os.fstat(self._fd).st_nlink:
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1
