"""The exit of a process that has environments: they are closed, within a bounded time."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from agentrm.threads import in_thread

if TYPE_CHECKING:
    from agentrm.tools.environments import Environments

__all__ = ["close_at_exit"]

EXIT_S = 1.0
"""Seconds beyond the grace time that the exit of the process waits for one that is just being made. What is not gone by
then is left to the journal."""
HUNG_S = 10.0
"""Seconds beyond the grace time in which one has to be gone, when the process exits, for the exit to wait on."""


def close_at_exit(of: weakref.ref[Environments], pid: int) -> None:
    """For `atexit`: closes what is still there, in the process `pid` that made it and not in its forks."""
    environments = of()
    if environments is not None and os.getpid() == pid:
        environments._patience_s = environments.settings.grace_s + EXIT_S
        _close_while_it_goes_on(environments)


def _close_while_it_goes_on(environments: Environments) -> None:
    """`close`, which a provider that hangs must not hold up for ever."""
    over, failed = threading.Event(), list[BaseException]()

    def closing() -> None:
        try:
            environments.close()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)
        over.set()

    try:
        in_thread(closing)
    except RuntimeError:  # a Python that starts no thread any more at its exit
        closing()
    left = len(environments._live) + 1
    while not over.wait(environments.settings.grace_s + HUNG_S):
        if len(environments._live) >= left:
            logging.getLogger("agentrm").warning(
                "%d environments are still being removed and left to the journal: run agentrm doctor --clean", left
            )
            return
        left = len(environments._live)
    if failed:
        raise failed[0]
