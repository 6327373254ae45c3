"""The port: how the threads of one process share one participant of the kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from agentrm.core._agentrm_core import ffi, lib
from agentrm.core.kernel import Kernel, memory_of

__all__ = ["Port", "Tap"]

_PORT = (
    "submit", "submit_keyed", "settle", "cancel", "reap", "advance", "heartbeat", "try_acquire", "enter", "leave",
    "take", "due", "strain",
)  # fmt: skip


class Port:
    """The kernel for the threads of one process: what an operation grants goes into a queue that any thread may drain
    with `take`, so that no thread can overwrite another's results. `now_ns=-1` means now. See csrc/port.h."""

    def __init__(self, kernel: Kernel, tickets: int) -> None:
        self.kernel = kernel
        self._holder = ffi.new("char[]", lib.arm_port_size(tickets) + 16)
        self._port = port = ffi.cast("arm_port *", (int(ffi.cast("uintptr_t", self._holder)) + 15) & ~15)
        memory_of[port] = self._holder, kernel._ctx
        lib.arm_port_init(port, kernel._ctx, tickets)
        self.submit: Callable[[int, int, int, int, int, int, int], int] = MethodType(lib.arm_port_submit, port)
        self.submit_keyed: Callable[..., int] = MethodType(lib.arm_port_submit_keyed, port)
        self.settle: Callable[[int, int, int], int] = MethodType(lib.arm_port_settle, port)
        self.cancel: Callable[[int, int], int] = MethodType(lib.arm_port_cancel, port)
        self.reap: Callable[[int, int], int] = MethodType(lib.arm_port_reap, port)
        self.advance: Callable[[int], int] = MethodType(lib.arm_port_advance, port)
        self.heartbeat: Callable[[int, int], int] = MethodType(lib.arm_port_heartbeat, port)
        self.try_acquire: Callable[[int, int, int], int] = MethodType(lib.arm_port_try, port)
        self.enter: Callable[[int, int], int] = MethodType(lib.arm_port_enter, port)
        self.leave: Callable[[int, int], int] = MethodType(lib.arm_port_leave, port)
        self.take: Callable[[], int] = MethodType(lib.arm_port_take, port)
        self.due: Callable[[], int] = MethodType(lib.arm_port_due, port)
        self.strain: Callable[[int], int] = MethodType(lib.arm_port_strain, port)
        self._taps: weakref.WeakSet[Tap] = weakref.WeakSet()
        kernel._ports.add(self)

    def poison(self, refuse: Callable[..., Any]) -> None:
        for tap in list(self._taps):
            tap.try_acquire = refuse
        for name in _PORT:
            setattr(self, name, refuse)


class Tap:
    """One limit and an amount, bound: `try_acquire()` takes that much now (1) or nothing (0). The quickest way to ask a
    limit that no pool is asked through."""

    __slots__ = ("__weakref__", "_port", "try_acquire")

    def __init__(self, port: Port, limit: int, amount: int = 1) -> None:
        self._port = port
        tap = ffi.new("arm_tap *", {"port": port._port, "limit": limit, "amount": amount})
        memory_of[tap] = port._port
        self.try_acquire: Callable[[], int] = MethodType(lib.arm_tap_try, tap)
        port._taps.add(self)
