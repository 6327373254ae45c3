"""`max_rpm` of an agent or a crew without CrewAI's controller, which sleeps a minute with a lock in hand.

The number stays what it was, a limit of requests in a minute, and counts in every window of 60 seconds, not only in
those that begin on the minute. Who has to wait does so in order of arrival, on the manager's clock, before the queue of
the pool, and holds nothing. Limits that several agents share belong in the configuration (`pools`, `accounts`)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from crewai.utilities.rpm_controller import RPMController
from pydantic import PrivateAttr

from agentrm.adapters.attempts import pause
from agentrm.adapters.copies import is_over

__all__ = ["Pace", "paced"]

_WINDOW_NS = 60 * 10**9


class Pace(RPMController):
    """CrewAI's controller by its interface alone; of its state nothing is used."""

    _rm: Any = PrivateAttr(default=None)
    _starts: deque[int] = PrivateAttr(default_factory=deque)
    _order: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def check_or_wait(self) -> bool:
        """True when the request may be made; waits until then."""
        with self._order:
            now = self._rm.clock.now_ns()
            start = now if len(self._starts) < (self._starts.maxlen or 0) else max(now, self._starts[0] + _WINDOW_NS)
            self._starts.append(start)
        pause(self._rm, (start - now) / 1e9)
        return True


def paced(rm: Any, controller: RPMController | None) -> RPMController | None:
    """What takes the controller's place; itself where it limits nothing."""
    if controller is None or controller.max_rpm is None:
        return controller
    if isinstance(controller, Pace) and not is_over(controller._rm):
        return controller
    controller.stop_rpm_counter()  # ends its timer
    pace = Pace.model_construct(max_rpm=controller.max_rpm, logger=controller.logger)
    pace._rm, pace._starts = rm, deque(maxlen=controller.max_rpm)
    return pace
