"""Zombies: work that goes on after its lane was taken away or its caller left."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from agentrm.core.codes import WAITED
from agentrm.scheduling.lease import Lease
from agentrm.scheduling.states import REAPED, RUNNING

if TYPE_CHECKING:
    from agentrm.scheduling.gate import Gate

__all__ = ["Zombies"]


class Left:
    """Dies with a zombie's lease, and ends the zombie if that was not released before."""

    __slots__ = ("_gate", "_ghost")

    def __init__(self, gate: Gate, ghost: Lease) -> None:
        self._gate, self._ghost = gate, ghost

    def __del__(self) -> None:
        self._gate.release(self._ghost, True)


class Zombies:
    """Those of one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def abandon(self, lease: Lease) -> None:
        """The caller left, its work goes on: a zombie until the lease is released."""
        gate = self._gate
        if lease.state == RUNNING and gate.port.reap(lease.handle, gate.clock.now_ns()) >= 0:
            lease.state = REAPED
            self.haunt(lease)
            if lease.route.pool.strain & WAITED:
                gate.pressure.touch(lease.route.pool)
            gate.deliver()
            gate.arm()
            if gate.subscriptions:
                gate.publish()

    def haunt(self, lease: Lease) -> None:
        """From now on the zombie ends when its lease is released, or when nobody holds the lease any more."""
        gate = self._gate
        ghost = copy(lease)
        # Nothing that leads to leases.
        ghost._task = ghost._on_reap = ghost._parent = ghost._beyond = ghost._token = ghost.error = None
        lease._left = Left(gate, ghost)
        if gate.leases.pop(lease.handle, None) is not None:
            gate.leases[lease.handle] = ghost
