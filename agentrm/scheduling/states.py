"""The states of a lease.

    new -> waiting -> running -> done
                         |-> reaped -> done    (the call ran or idled too long; the lane is free already)
"""

from __future__ import annotations

__all__ = ["ENDED", "NEW", "REAPED", "RUNNING", "WAITING"]

NEW, WAITING, RUNNING, REAPED, ENDED = "new", "waiting", "running", "reaped", "done"
