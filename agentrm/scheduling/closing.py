"""The end of a manager: no new work, waiting calls told, running ones given time, and a report of what was left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.scheduling import refusals

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager
    from agentrm.scheduling.report import LeaseInfo

__all__ = ["CloseReport"]


@dataclass(frozen=True, slots=True)
class CloseReport:
    """`turned_away`: waiting calls that failed with ManagerClosed. `left`: calls still running, zombies too."""

    turned_away: int
    left: tuple[LeaseInfo, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was left running."""
        return not self.left


def _turn_away(rm: ResourceManager) -> int:
    rm.gate.closing = True
    n = 0 if rm.gate.budgets is None else rm.gate.budgets.close()
    for lease in reversed(list(rm.gate.queued.values())):  # from the end: so none comes to the head and runs
        n += rm.gate.refuse_waiting(lease, refusals.closing(rm.name, lease))
    for wake in list(rm.gate.pauses):  # their next attempts are turned away
        wake()
    rm.gate.idle.clear()
    if not rm.gate.leases:
        rm.gate.idle.set()
    return n


def _report(rm: ResourceManager, turned_away: int) -> CloseReport:
    for subscription in list(rm.gate.subscriptions):
        subscription.close()
    snapshot = rm.snapshot()
    return CloseReport(turned_away, snapshot.holding + snapshot.zombies)


def close(rm: ResourceManager, timeout: float | None) -> CloseReport:
    """Turns away what waits and what comes, and waits up to `timeout` seconds (None: without end) for what runs."""
    turned_away = _turn_away(rm)
    if timeout is None or timeout > 0:
        rm.gate.idle.wait(timeout)
    return _report(rm, turned_away)


async def aclose(rm: ResourceManager, timeout: float | None) -> CloseReport:
    """`close` without blocking the loop."""
    turned_away = _turn_away(rm)
    if not rm.gate.idle.is_set() and (timeout is None or timeout > 0):
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            if not done.done():
                done.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended)

        rm.gate.on_idle.append(tell)
        if rm.gate.idle.is_set():
            ended()
        try:
            await asyncio.wait_for(done, timeout)
        except asyncio.TimeoutError:  # reported, not raised
            return _report(rm, turned_away)
    return _report(rm, turned_away)
