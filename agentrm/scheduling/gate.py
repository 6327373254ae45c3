"""The gate: the way of a lease into the kernel and out of it, and who is woken when.

Every operation that can grant lanes is followed by `deliver`, in whichever thread did it, so a lane that comes free is
handed on before anything else happens. One timer stands for all that wait for time to pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrm.clock import Timer
from agentrm.core import codes
from agentrm.core.codes import DONE, FAILED, REFUND, WAITED
from agentrm.core.port import Port
from agentrm.errors import AdmissionError
from agentrm.scheduling import refusals
from agentrm.scheduling.backoff import Backoff
from agentrm.scheduling.circles import refuse_circle
from agentrm.scheduling.lease import Lease
from agentrm.scheduling.loops import Loops
from agentrm.scheduling.ordering import ordering
from agentrm.scheduling.pool import LONGEST_S
from agentrm.scheduling.pressure import PressureGauge
from agentrm.scheduling.reaper import Sweeper
from agentrm.scheduling.states import ENDED, NEW, RUNNING, WAITING
from agentrm.scheduling.waiters import Batch, CallbackWaiter, Waiter
from agentrm.scheduling.zombies import Zombies

if TYPE_CHECKING:
    from agentrm.limits.provider_errors import ProviderError
    from agentrm.scheduling.budgets import Budgets
    from agentrm.scheduling.events import Subscription
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Gate"]

_RESUMED, _TRY, _AWAITED = (f << 12 for f in (codes.F_RESUMED, codes.F_TRY, codes.F_AWAITED))
_E_AGENT, _E_QUEUE, _E_STATE = codes.E_AGENT, codes.E_QUEUE, codes.E_STATE


class _Mark:
    """A place in the table of waiters that is not a waiter."""

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        """Nobody sleeps here."""


_GRANTED, _DROPPED = _Mark(), _Mark()


class Gate:
    """One manager's traffic with its kernel. Safe from any thread: tables change by single atomic dict operations, and
    every race (grant or cancel, reap or settle) is decided by the kernel's answer."""

    def __init__(self, rm: ResourceManager) -> None:
        self.rm = rm
        self.clock = rm.clock
        self._now = rm.clock.now_ns
        self.port = Port(rm.kernel, rm.layout.kernel.tickets)
        self.waiters: dict[int, Waiter] = {}
        self.queued: dict[int, Lease] = {}
        self.leases: dict[int, Lease] = {}
        self.order = ordering(rm, self)
        self.backoff = Backoff(rm, self)
        self.sweeper = Sweeper(rm, self)
        self.zombies = Zombies(self)
        self.loops = Loops(self)
        self.subscriptions: list[Subscription] = []
        self.closing = False
        self.pauses: dict[Callable[[], object], Lease | None] = {}  # wake those that wait outside the queue; round them
        self.pressure = PressureGauge(rm)
        self.budgets: Budgets | None = None
        """Set where budgets are configured."""
        self.idle = threading.Event()
        self.on_idle: list[Callable[[], object]] = []
        self._max_wait = rm.config.waiting.max_s
        self._timer: Timer | None = None
        self._timer_lock = threading.RLock()  # re-entrant: a collected coroutine gives up wherever the collector runs

    def submit(self, lease: Lease, *, only_try: bool = False) -> bool:
        """True: the lane is granted. False: the lease waits and must be registered (or, with the try flag, is
        refused)."""
        if self.budgets is not None and lease._charges is None and lease.state == NEW:
            return self.budgets.submit(lease, only_try)
        if lease.state != NEW:
            raise AdmissionError(f"{lease!r} was used before; ask for a new lease for each call", agent=lease.agent)
        if self.closing:
            raise refusals.closing(self.rm.name, lease)
        if lease._cancellable is not None and lease._cancellable.cancelled:
            raise lease._cancellable.error()
        route, parent = lease.route, lease._parent
        if self.backoff.closed:
            self.backoff.refuse_if_closed(lease)
        state = route.pool
        now = self._now()
        who = route.who
        if lease.resumed:
            who |= _RESUMED
        if parent is not None and parent.awaited:
            who |= _AWAITED
        if only_try:
            who |= _TRY
        asked = (
            who,
            lease.tokens,
            now,
            state.idle_us(route.kind, lease._idle_s),
            state.run_us(lease._run_s),
            0 if parent is None else parent.handle,
            lease._memory,
        )
        rc = self.port.submit(*asked) if self.order is None else self.order.submit(asked, lease)
        if rc < 0:
            return self._refused(lease, rc, only_try)
        lease.handle = rc >> 1
        lease.submitted_ns = now
        if rc & 1:
            lease.granted_ns = lease._beat_ns = now
            lease.state = RUNNING
            self.leases[lease.handle] = lease
            if not self.sweeper.active:
                self.sweeper.start()
            state.granted += 1
            if state.strain & WAITED:
                self.pressure.touch(state)
            if self.waiters:
                self.deliver()
                self.arm()
            if self.subscriptions:
                self.publish()
            return True
        lease.state = WAITING
        return False

    def _refused(self, lease: Lease, rc: int, only_try: bool) -> bool:
        if rc == _E_AGENT:  # its slot was given to another name meanwhile
            lease.route = self.rm.routes.renew(lease.route)
            return self.submit(lease, only_try=only_try)
        if rc == _E_QUEUE and only_try:
            self.deliver()
            self.arm()
            return False
        raise refusals.of_code(rc, lease, self.rm)

    def register(self, lease: Lease, waiter: Waiter) -> bool:
        """Puts a queued lease to sleep. False: it was granted between the submit and now. The caller calls `give_up`
        after any exception."""
        handle = lease.handle
        pool = lease.route.pool
        pool.queued += 1
        if not pool.strain & WAITED:
            self.pressure.touch(pool)
        self.queued[handle] = lease
        if self.waiters.setdefault(handle, waiter) is _GRANTED:
            self.waiters.pop(handle, None)
            self.granted(lease)
            return False
        wait_max = lease._wait_max if lease._wait_max is not None else self._max_wait
        if wait_max is not None and wait_max <= LONGEST_S:
            opens = self.backoff.opens_in_s(lease)
            if opens > wait_max or wait_max == 0:
                raise refusals.queue_timeout(lease, wait_max, opens)
            due = lease.submitted_ns + int(wait_max * 1e9)
            lease._timer = self.clock.call_at(due, lambda: self._expire(lease, wait_max))
        if self.closing:  # closed between the submit and now
            raise refusals.closing(self.rm.name, lease)
        if self.backoff.closed:
            self.backoff.refuse_if_closed(lease)
        if lease._cancellable is not None:
            lease._cancellable.watch(lease, self.refuse_waiting)
        if lease.refusal is not None:  # taken out of the queue before it was registered
            raise lease.refusal
        if not self.sweeper.active:
            self.sweeper.start()
        self.deliver()
        self.arm()
        if self.subscriptions:
            self.publish()
        if lease._parent is not None and lease.route.kind == "tool" and self.rm.config.tools:
            refuse_circle(self.rm, lease)
        return True

    def submit_then(self, lease: Lease, then: Callable[[BaseException | None], object]) -> bool:
        """`submit` for a caller that does not sleep. False: `then` is called when the lane is there, or with the reason
        why it will not be."""
        try:
            return self.submit(lease) or not self.register(lease, CallbackWaiter(lambda: self.granted(lease), then))
        except BaseException:
            self.give_up(lease)
            raise

    def granted(self, lease: Lease) -> None:
        """Runs in the caller's own thread or task, once, after its lane was granted."""
        state = lease.route.pool
        self.queued.pop(lease.handle, None)
        if lease._timer is not None:
            lease._timer.cancel()
        if lease.error is not None:  # its loop was stuck for so long that the lane was taken back
            raise lease.error
        if lease._cancellable is not None:
            lease._cancellable.forget(lease)
        now = self._now()
        lease.granted_ns = lease._beat_ns = now
        lease.state = RUNNING
        self.leases[lease.handle] = lease
        if not self.sweeper.active:
            self.sweeper.start()
        state.granted += 1
        if state.strain & WAITED:
            self.pressure.touch(state)
        state.waited_s += (now - lease.submitted_ns) / 1e9

    def deliver(self) -> None:
        """Wakes whoever was granted a lane by the last operations, whichever thread did them."""
        take, waiters = self.port.take, self.waiters
        handle = take()
        if not handle:
            return
        while handle:
            batch = Batch()
            while handle:
                waiter = waiters.pop(handle, None)
                if waiter is None:  # not registered yet, or it gave up this moment
                    waiter = waiters.setdefault(handle, _GRANTED)
                    if waiter is not _GRANTED:
                        waiters.pop(handle, None)
                waiter.wake(batch, None)
                handle = take()
            for waiter in batch.send():
                waiter.lost()
            handle = take()  # what the lost ones gave back
        if self.subscriptions:
            self.publish()

    def give_up(self, lease: Lease) -> None:
        """The caller left the queue: cancelled, interrupted, expired, or its loop is closed."""
        self.drop(lease)
        self.deliver()
        self.arm()
        if self.subscriptions:
            self.publish()

    def drop(self, lease: Lease) -> None:
        """`give_up` for callers that deliver by themselves."""
        handle = lease.handle
        self.queued.pop(handle, None)
        if lease._timer is not None:
            lease._timer.cancel()
        if lease.state != WAITING:
            self.release(lease, True)
            return
        lease.state = ENDED
        if lease._charges and self.budgets is not None:
            self.budgets.leave(lease)
        rc = self.port.cancel(handle, self._now())
        waiter = self.waiters.pop(handle, None)
        if rc == _E_STATE:  # granted at this very moment: the lane goes on to the next
            undelivered = waiter is not None and waiter is not _GRANTED
            if undelivered and self.waiters.setdefault(handle, _DROPPED) is _GRANTED:
                self.waiters.pop(handle, None)
            self.port.settle(handle, REFUND, self._now())
            lease.route.pool.refunded += 1
        elif rc >= 0:
            lease.route.pool.cancelled += 1
        if lease.route.pool.strain & WAITED:
            self.pressure.touch(lease.route.pool)

    def _expire(self, lease: Lease, wait_max: float) -> None:
        if lease.state == WAITING:
            self.refuse_waiting(lease, refusals.queue_timeout(lease, wait_max, self.backoff.opens_in_s(lease)))

    def refuse_waiting(self, lease: Lease, error: BaseException) -> bool:
        """Takes a lease out of the queue and lets its caller fail. False: it was granted meanwhile."""
        refused = self.port.cancel(lease.handle, self._now()) >= 0
        if refused:
            lease.refusal = error
            lease.state = ENDED
            if lease._charges and self.budgets is not None:
                self.budgets.leave(lease)
            if lease._timer is not None:
                lease._timer.cancel()
            lease.route.pool.cancelled += 1
            if lease.route.pool.strain & WAITED:
                self.pressure.touch(lease.route.pool)
            self.queued.pop(lease.handle, None)
            waiter = self.waiters.pop(lease.handle, None)
            if waiter is not None:
                batch = Batch()
                waiter.wake(batch, error)
                batch.send()  # where the loop is closed there is nobody to tell
        self.deliver()
        self.arm()
        if self.subscriptions:
            self.publish()
        return refused

    # --- the way out ---

    def release(self, lease: Lease, failed: bool) -> None:
        """Ends the lease, whatever state it is in. Whoever takes it out of the table settles it: once."""
        state = lease.state
        if state == WAITING:
            self.give_up(lease)
        elif self.leases.pop(lease.handle, None) is not None:
            lease.state = ENDED
            used = lease._used
            if lease._refund:
                how = REFUND
            elif used is not None:
                how = (FAILED if failed else DONE) | used << 2
            else:
                how = FAILED | lease._input << 2 if failed else DONE | lease.tokens << 2
            self._settle(lease, how, state)
        elif state == NEW:
            lease.state = ENDED

    def _settle(self, lease: Lease, how: int, state: str) -> None:
        pool, outcome = lease.route.pool, how & 3
        now = self._now()
        rc = self.port.settle(lease.handle, how, now)
        if lease._charges and self.budgets is not None:
            self.budgets.settle(lease, how)
        if lease._parent is not None:  # it waited for this call until now
            lease._parent._beat_ns = now
        if state == RUNNING and rc >= 0:  # else the reaper was first
            lease.route.share.add(now - lease.granted_ns, how >> 2, lease._memory)
            if self.order is not None:
                self.order.used(lease, now, how >> 2)
            if outcome == DONE:
                pool.settled += 1
                if lease._used is not None:
                    pool.learn_tokens(lease._used)
                if not lease.beats and pool.learns and lease.route.kind == "model":
                    lease._learn_end(now)
                if self.backoff.trouble:
                    self.backoff.succeeded(lease)
            elif outcome == REFUND:
                pool.refunded += 1
            else:
                pool.failed += 1
        elif lease._memory and rc >= 0:  # a zombie held it until now
            lease.route.share.memory += lease._memory * (now - lease.granted_ns)
        if rc > 0 or self.waiters:
            self.deliver()
            self.arm()
        if pool.strain & WAITED and (rc <= 0 or pool.config.account is not None):  # else the next one tells
            self.pressure.touch(pool)
        if self.subscriptions:
            self.publish()
        self.ended()

    def ended(self) -> None:
        """Tells those who close the manager when nothing runs any more."""
        if self.closing and not self.leases:
            self.idle.set()
            while self.on_idle:
                self.on_idle.pop()()

    def failed(self, lease: Lease, exc: BaseException) -> ProviderError | None:
        """Tells the scope what its provider answered and ends the lease; a refused call is charged no tokens."""
        error = self.backoff.failed(lease, exc)
        if self.leases.pop(lease.handle, None) is not None:
            state, lease.state = lease.state, ENDED
            charge = 0 if error is not None and error.kind in ("rate", "quota", "auth") else lease._input
            if not charge and lease._charges and self.budgets is not None:  # turned away: nothing was done for it
                self.budgets.leave(lease)
            used = charge if lease._used is None else lease._used
            self._settle(lease, REFUND if lease._refund else FAILED | used << 2, state)
        return error

    # --- time ---

    def arm(self) -> None:
        """Sets the one timer to the earliest time at which a waiting call can run without anybody settling."""
        due = self.port.due()
        if due >= 0:
            self.arm_at(due)

    def arm_at(self, due: int) -> None:
        """Looks again at `due` (nanoseconds) at the latest."""
        timer = self._timer
        if timer is not None and timer.pending_by(due):
            return
        with self._timer_lock:
            if self._timer is not None:
                if self._timer.pending_by(due):
                    return
                self._timer.cancel()
            self._timer = self.clock.call_at(due, self.tick)

    def tick(self) -> None:
        """Grants what time has made possible."""
        with self._timer_lock:
            self._timer = None
        self.port.advance(self._now())
        self.deliver()
        self.arm()

    def publish(self) -> None:
        """Brings the subscribers up to date."""
        for subscription in list(self.subscriptions):
            subscription.pump()
