"""Whose turn it is: every call of the engine holds a lease of the kernel while it is computed, and gives it up for
others at a token boundary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from agentrm.errors import AdmissionError
from agentrm.identity import PRIORITIES, Priority, current_identity
from agentrm.scheduling import Lease, ResourceManager, current_lease

if TYPE_CHECKING:
    from agentrm.models.engine.calls import Call

_BY_CLASS = ("mlfq", "priority")


class Who(NamedTuple):
    """For whom a call is made."""

    agent: str
    tenant: str
    session: str | None
    priority: Priority

    @property
    def klass(self) -> int:
        return PRIORITIES.index(self.priority)


def caller() -> Who:
    """Who is asking here and now: the enclosing lease or the identity says so."""
    lease, known = current_lease(), current_identity()
    if lease is None:
        return Who(
            known.agent or "default", known.tenant or "default", known.session, known.priority or "interactive"
        )  # fmt: skip
    priority = known.priority or PRIORITIES[PRIORITIES.index(lease.priority)]
    return Who(known.agent or lease.agent, known.tenant or lease.tenant, known.session or lease.session, priority)


@dataclass(slots=True)
class Seat:
    """One call's place: `lease` while it is computed, `asked` while it waits for its turn."""

    lease: Lease | None = None
    asked: Lease | None = None
    since: int = 0
    """What its work had written when it was seated."""
    charged: bool = False
    """Whether its prompt has been accounted for."""


class Turns(NamedTuple):
    """Who decides them: a pool of a manager. `slice_tokens`: how many tokens a call writes before it lets another one
    have its seat, if one waits that the kernel prefers (None: it writes on)."""

    rm: ResourceManager
    pool: str
    slice_tokens: int | None


class Seats:
    """Asks the kernel for seats and hands them on."""

    def __init__(self, turns: Turns, seated: Callable[[Call, Lease, object], object]) -> None:
        self.rm, self.pool, self.slice_tokens = turns
        self._seated = seated
        self.switches = 0
        """How often a call gave its seat to another one."""

    def ask(self, call: Call, *, resumed: bool = False) -> None:
        """Asks for a seat; `seated(call, lease, error)` is called from some thread, unless it is there at once. Raises
        an AdmissionError."""
        lease = self._lease(call, resumed)
        here, at_once = threading.get_ident(), list[BaseException | None]()

        def then(error: BaseException | None) -> None:
            if asking and threading.get_ident() == here:
                at_once.append(error)
            else:
                self._seated(call, lease, error)

        call.seat.asked, asking = lease, True
        try:
            lease.acquire_then(then)
            asking = False
            for error in at_once:
                if error is not None:
                    raise error
                self.sit(call, lease)
        except BaseException:
            call.seat.asked, asking = None, False
            raise

    def sit(self, call: Call, lease: Lease) -> None:
        """The lane is there."""
        call.seat.asked, call.seat.lease, call.seat.since = None, lease, call.written

    def leave(self, call: Call) -> None:
        """Gives back whatever the call holds or waits for."""
        seat = call.seat
        if seat.asked is not None:
            seat.asked.refund()
            seat.asked.release()
            seat.asked = None
        if seat.lease is not None:
            self._settle(call, seat.lease, seat.since)
            seat.lease = None

    def share(self, seated: Iterable[Call], waiting: Iterable[Call]) -> None:
        """Lets those that wait have the seats that they have a right to, worst class and latest first."""
        waits = sorted(waiting, key=lambda call: call.rank)
        if not waits:
            return
        by_class = self._policy() in _BY_CLASS
        for call in sorted(seated, key=lambda call: call.rank, reverse=True):
            if not waits:
                return
            if by_class and waits[0].who.klass < call.who.klass:
                self._hand_on(call, resumed=True)
                del waits[0]
            elif self.slice_tokens is not None and call.written - call.seat.since >= self.slice_tokens:
                self._hand_on(call, resumed=False)
                del waits[0]

    def _hand_on(self, call: Call, *, resumed: bool) -> None:
        """Back into the queue, before the seat is free: so the kernel decides who of them all is next."""
        old, since = call.seat.lease, call.seat.since
        assert old is not None
        try:
            self.ask(call, resumed=resumed)
        except AdmissionError:  # the queue is full or closed: then it stays where it is
            return
        if call.seat.lease is old:
            call.seat.lease = None
            self.switches += 1
        self._settle(call, old, since)

    def _lease(self, call: Call, resumed: bool) -> Lease:
        who = call.who
        return self.rm.lease(
            agent=who.agent, tenant=who.tenant, session=who.session, priority=who.priority, kind="model",
            pool=self.pool, input_tokens=0 if call.touched else call.prompt,
            max_output_tokens=max(1, call.limit - call.written), idle_s=inf, run_s=inf, parent=None, resumed=resumed,
        )  # fmt: skip

    def _settle(self, call: Call, lease: Lease, since: int) -> None:
        prompt, output = 0 if call.seat.charged else call.prompt, call.written - since
        if call.touched and prompt + output:
            lease.settle(input_tokens=prompt, output_tokens=output)
            call.seat.charged = True
        else:
            lease.refund()
        lease.release()

    def _policy(self) -> str:
        order = self.rm.gate.order
        return self.rm.config.scheduling.policy if order is None else order.choice(self.pool).policy
