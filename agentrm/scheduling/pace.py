"""Which calls wait because their budgets' pace is used up, and when does the next one go?

A call beyond the pace is delayed, never refused: it waits here, before the queue of its pool, holding nothing.
Calls of one budget go in the order in which they came. One timer stands for all of them. """

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentrm.errors import QueueTimeout
from agentrm.limits.account import TOKENS
from agentrm.scheduling import refusals
from agentrm.scheduling.waiters import Batch, Waiter

if TYPE_CHECKING:
    from agentrm.clock import Timer
    from agentrm.limits.account import Account, Charge
    from agentrm.limits.serial import Serial
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Pace", "timeout"]


class _Parked(NamedTuple):
    charges: list[Charge]
    waiter: Waiter
    expiry: Timer | None


class Pace:
    """The calls that wait for the pace of their budgets. All methods but the timers' run inside `serial`."""

    def __init__(self, rm: ResourceManager, serial: Serial) -> None:
        self._rm, self._serial = rm, serial
        self._parked: dict[Lease, _Parked] = {}
        self._delaying: set[Account] = set()
        self._timer: Timer | None = None

    def passes(self, charges: list[Charge]) -> bool:
        """Lets a call go at once if its pace has room and nobody of the same budget waits before it."""
        now = self._rm.clock.now_ns()
        if any(charge.account.delayed for charge in charges) or self._due(charges, now) > now:
            return False
        self._take(charges)
        return True

    def park(self, lease: Lease, charges: list[Charge], waiter: Waiter, wait_max: float | None) -> None:
        """The call waits; `waiter` is woken when it may go, or with QueueTimeout after `wait_max` seconds."""
        clock, expiry = self._rm.clock, None
        if wait_max is not None:
            error = timeout(lease, wait_max, charges)
            due = clock.now_ns() + int(wait_max * 1e9)
            expiry = clock.call_at(due, lambda: self._serial.post(lambda: self.refuse(lease, error)))
        self._parked[lease] = _Parked(charges, waiter, expiry)
        for charge in charges:
            charge.account.delayed += 1
            self._delaying.add(charge.account)
        self.pump()

    def forget(self, lease: Lease) -> Waiter | None:
        """The call waits no longer. Returns who is to be woken, None if it did not wait."""
        parked = self._parked.pop(lease, None)
        if parked is None:
            return None
        if parked.expiry is not None:
            parked.expiry.cancel()
        for charge in parked.charges:
            charge.account.delayed -= 1
            if not charge.account.delayed:
                self._delaying.discard(charge.account)
        return parked.waiter

    def refuse(self, lease: Lease, error: BaseException) -> None:
        waiter = self.forget(lease)
        if waiter is not None:
            batch = Batch()
            waiter.wake(batch, error)
            batch.send()  # where the loop is closed there is nobody to tell
            self.pump()

    def close(self) -> int:
        """Turns everyone away; returns how many."""
        waiting = list(self._parked)
        for lease in waiting:
            self.refuse(lease, refusals.closing(self._rm.name, lease))
        return len(waiting)

    def correct(self, charge: Charge, used: float) -> None:
        """A call used more or less than it took."""
        if charge.paced != used:
            charge.account.refill(self._rm.clock.now_ns())
            charge.account.level += charge.paced - used
            charge.paced = used
            if charge.account.delayed:
                self.pump()

    def pump(self) -> None:
        """Lets go whoever may, in order, and sets the timer for the next."""
        now, due, batch = self._rm.clock.now_ns(), None, Batch()
        blocked: set[Account] = set()
        for lease, parked in list(self._parked.items()):
            accounts = {charge.account for charge in parked.charges}
            if not accounts & blocked:
                when = self._due(parked.charges, now)
                if when <= now:
                    self.forget(lease)
                    self._take(parked.charges)
                    parked.waiter.wake(batch, None)
                    continue
                due = when if due is None else min(due, when)
            blocked |= accounts
            if len(blocked) == len(self._delaying):
                break
        for lost in batch.send():
            lost.lost()
        self._arm(due)

    def _arm(self, due: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._rm.clock.call_at(due, lambda: self._serial.post(self.pump))

    @staticmethod
    def _due(charges: list[Charge], now: int) -> int:
        return max(charge.account.ready_ns(charge.amounts[TOKENS], now) for charge in charges)

    @staticmethod
    def _take(charges: list[Charge]) -> None:
        for charge in charges:
            charge.paced = charge.amounts[TOKENS]
            charge.account.level -= charge.paced


def timeout(lease: Lease, wait_max: float, charges: list[Charge]) -> QueueTimeout:
    """For a call that the paces of `charges` did not let go within `wait_max` seconds."""
    names = " and ".join(f"budgets.{charge.account.name}" for charge in charges)
    return QueueTimeout(
        f"the call of agent {lease.agent!r} may wait {wait_max:g} s (queue wait) and the pace of {names} did not "
        "let it go. Nothing was sent; retry, wait longer (wait_max), or raise the pace",
        pool=lease.pool, agent=lease.agent, is_retryable=True,
    )  # fmt: skip
