"""Takes lanes back from calls that ran or idled too long.

One timer looks every `reaper.sweep_s` seconds while anything runs. An async call is interrupted and its lane is free
at once. A blocked thread cannot be stopped: its lane is free too, but it counts as a zombie until it ends.

Silence is judged with `stalls`: what nobody here could hear is not the provider's silence.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from agentrm.core.codes import E_STALE, FAILED, REFUND, WAITED
from agentrm.errors import IdleTimeout, LeaseError, RunTimeout
from agentrm.scheduling.lease import Lease
from agentrm.scheduling.stalls import Stalls, excuse, is_asked, silence_ns
from agentrm.scheduling.states import ENDED, REAPED, RUNNING
from agentrm.scheduling.waiters import Batch

if TYPE_CHECKING:
    from agentrm.scheduling.gate import Gate
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Sweeper"]

log = logging.getLogger("agentrm")
NEVER = 1 << 62


class Sweeper:
    """The manager's reaper."""

    def __init__(self, rm: ResourceManager, gate: Gate) -> None:
        self._rm, self._gate = rm, gate
        self._starting = threading.Lock()
        self.active = False
        self._soonest_ns = NEVER
        self._every_ns = max(1, int(rm.config.reaper.sweep_s * 1e9))
        self._due_ns = 0
        self._stalls = Stalls(rm.clock, self._judge)

    def start(self) -> None:
        """Runs the timer until nothing runs or waits. Cheap to call again."""
        if not self._starting.acquire(blocking=False):
            return  # another thread is at it
        try:
            if not self.active:
                self.active = True
                try:
                    self._next()
                except BaseException:  # a signal's: the next call starts it
                    self.active = False
                    raise
        finally:
            self._starting.release()

    def _next(self) -> None:
        """At the latest after `sweep_s`; sooner if a call will have been silent for too long by then."""
        clock = self._rm.clock
        self._due_ns = clock.now_ns() + min(self._every_ns, self._soonest_ns + 1_000_000)
        self._soonest_ns = NEVER
        clock.call_at(self._due_ns, self.sweep)

    def sweep(self) -> None:
        rm, gate = self._rm, self._gate
        now = rm.clock.now_ns()
        try:
            if now - self._due_ns > self._every_ns:  # the process stood still: so long nobody was heard
                for running in list(gate.leases.values()):
                    excuse(running, self._due_ns, now)
            for outer in list(gate.pauses.values()):  # what it waits for has no lease of its own meanwhile
                if outer is not None:
                    outer.waited()
            for handle, reason in list(rm.kernel.overdue(now)):
                lease = gate.leases.get(handle) or gate.queued.get(handle)
                if lease is not None:
                    self.reap(lease, reason)
                else:  # its caller was interrupted (a signal) between the kernel's answer and ours
                    gate.port.settle(handle, FAILED, now)
                    gate.deliver()
                    gate.arm()
            gate.loops.bury()
            self._judge(self._stalls.ask(self._silent(now), now))
            if gate.order is not None:
                gate.order.look()
        finally:  # whatever happened, the next sweep comes
            if gate.leases or gate.queued:
                self._next()
            else:
                self.active = False
                if gate.leases or gate.queued:  # one came in between
                    self.start()

    def _silent(self, now: int) -> list[Lease]:
        """Model calls without a fixed limit that have been silent for longer than a sweep, or than they may be."""
        found = []
        for lease in list(self._gate.leases.values()):
            route = lease.route
            if route.kind != "model" or not route.pool.learns or lease._idle_s is not None or lease.state != RUNNING:
                continue
            left = self._left_ns(lease, now)
            if left < 0 or now - lease._beat_ns > self._every_ns:
                found.append(lease)
            if 0 <= left < self._soonest_ns and not is_asked(lease):
                self._soonest_ns = left
        return found

    def _left_ns(self, lease: Lease, now: int) -> int:
        """For how long the call may still be silent, by what was learnt. The limit is that of this moment: a call that
        hung before anything was known is found as soon as others have shown what is usual."""
        limit = lease.route.pool.progress_of(lease.route.scope).limit_ns(
            lease._input, streams=lease.streams, begun=lease.beats > 0, again=lease.resumed
        )
        return limit - silence_ns(lease, now)

    def _judge(self, leases: list[Lease]) -> None:
        """Reaps those that have been silent for too long, unless they wait for calls of their own."""
        gate, now = self._gate, self._rm.clock.now_ns()
        found = [lease for lease in leases if lease.state == RUNNING and self._left_ns(lease, now) < 0]
        if found:
            parents = {x._parent for x in (*list(gate.leases.values()), *list(gate.queued.values()))}
            for lease in found:
                if lease not in parents:
                    self.reap(lease, "idle")

    def reap(self, lease: Lease, reason: str) -> None:
        """Takes the lane away. The transition is the kernel's: if the call ended in this very moment, nothing
        happens."""
        rm, gate = self._rm, self._gate
        error = self._error(lease, reason)
        task = lease._task
        # A task is interrupted, and a grant that nobody came to fetch is just taken back: the work is over with it.
        if task is not None or lease.state != RUNNING:
            used = lease.tokens if lease._used is None else lease._used
            nothing_sent = lease._refund or lease.state != RUNNING
            how = REFUND if nothing_sent else FAILED | used << 2
            rc = gate.port.settle(lease.handle, how, rm.clock.now_ns())
            after = ENDED
        else:
            rc = gate.port.reap(lease.handle, rm.clock.now_ns())
            after = REAPED
        if rc == E_STALE:
            return
        lease.error = error
        if after == ENDED or lease.state == RUNNING:  # else its thread has just come back and ended it
            lease.state = after
            if after == REAPED:
                gate.zombies.haunt(lease)
        lease.route.pool.reaped += 1
        if lease.route.pool.strain & WAITED:
            gate.pressure.touch(lease.route.pool)
        if after == ENDED:
            if lease.granted_ns:
                lease.route.share.add(rm.clock.now_ns() - lease.granted_ns, how >> 2, lease._memory)
            if lease._charges and gate.budgets is not None:
                gate.budgets.settle(lease, how)
            gate.leases.pop(lease.handle, None)
            gate.queued.pop(lease.handle, None)
            waiter = gate.waiters.pop(lease.handle, None)
            if waiter is not None:  # whoever was to wake it was interrupted in between
                batch = Batch()
                waiter.wake(batch, error)
                batch.send()
        if task is not None:
            try:
                task.get_loop().call_soon_threadsafe(lease._interrupt)
            except RuntimeError:  # its loop is closed: nobody is left to interrupt
                lease._task = None
        gate.deliver()
        gate.arm()
        gate.ended()
        if gate.subscriptions:
            gate.publish()
        if lease._on_reap is not None:
            try:
                lease._on_reap(lease, error)
            except Exception:  # a user's callback must not stop the reaper
                log.exception("on_reap of %r failed", lease)

    def _error(self, lease: Lease, reason: str) -> LeaseError:
        pool, rm = lease.route.pool, self._rm
        if reason == "run":
            limit = pool.run_us(lease._run_s) / 1e6
            return RunTimeout(
                f"the call of agent {lease.agent!r} in {lease.pool!r} ran for {lease.held_s:.3g} s; its run limit is "
                f"{limit:g} s. Its lane is free. Retry it, or raise run_s (reaper.run_s)",
                pool=lease.pool, agent=lease.agent, is_retryable=True,
            )  # fmt: skip
        silent = (rm.clock.now_ns() - lease._beat_ns) / 1e9 if lease._beat_ns else lease.held_s
        return IdleTimeout(
            f"the call of agent {lease.agent!r} in {lease.pool!r} made no progress for {silent:.3g} s, which is "
            "longer than its idle limit. Its lane is free. Retry it, or raise idle_s (reaper.idle_s)",
            pool=lease.pool, agent=lease.agent, is_retryable=True,
        )  # fmt: skip
