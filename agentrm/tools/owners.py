"""Who owns an environment: one process, told apart from any other that has its process id later or elsewhere."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from agentrm.core.kernel import process_started

__all__ = ["Owner", "is_alive", "this_process"]


@dataclass(frozen=True, slots=True)
class Owner:
    """`started`: clock ticks between the start of the machine (`boot`) and that of the process; 0 where it can't be
    told. `namespace`: the process namespace, in which `pid` counts."""

    pid: int
    started: int
    boot: str
    namespace: str
    host: str


def this_process() -> Owner:
    """What tells this process from any other, also one that gets its number later or runs elsewhere."""
    pid = os.getpid()
    return Owner(pid, process_started(pid), _boot(), _namespace(), socket.gethostname())


def is_alive(owner: Owner) -> bool:
    """Whether the owner may be alive. False only if it is certain that it is not: what can't be seen from here (another
    machine, another process namespace) counts as alive."""
    boot = _boot()
    if owner.boot != boot:
        return owner.host != socket.gethostname()  # this machine was started anew: nothing of it is left
    if owner.namespace != _namespace() or (not boot and owner.host != socket.gethostname()):
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if owner.started and process_started(owner.pid) != owner.started:
        return False
    return _state(owner.pid) not in "ZX"


def _state(pid: int) -> str:
    """The letter of the process's state; Z and X are those of one that has ended and was not reaped."""
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[0] if stat else "?"


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # no such kernel interface here
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
