"""What the journals of each tenant may take, and how many sessions it may have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from agentrm.storage import Quota, QuotaExceeded

__all__ = ["JournalQuotas"]


class JournalQuotas:
    """Limits by tenant; the entry "*" holds for all others. `measure` tells the bytes that a tenant's
    journals take.

    What other processes write counts when they have reached the limit here: then the files are measured
    again.
    """

    def __init__(self, quotas: Mapping[str, Quota], measure: Callable[[str], int]) -> None:
        self._quotas, self._measure = dict(quotas), measure
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}

    def _of(self, tenant: str) -> Quota:
        return self._quotas.get(tenant, self._quotas.get("*", Quota()))

    def charge(self, tenant: str, size: int) -> None:
        """Counts `size` bytes, or raises QuotaExceeded and counts nothing."""
        limit = self._of(tenant).bytes
        if limit is None:
            return
        with self._lock:
            used = self._used.get(tenant)
            if used is None or used + size > limit:
                used = self._measure(tenant)
            if used + size > limit:
                raise QuotaExceeded(tenant, "bytes", limit, used, size)
            self._used[tenant] = used + size

    def one_more(self, tenant: str, sessions: Callable[[], int]) -> None:
        """Raises QuotaExceeded if the tenant may not begin another session."""
        limit = self._of(tenant).items
        if limit is not None and (held := sessions()) >= limit:
            raise QuotaExceeded(tenant, "items", limit, held, 1)

    def forget(self, tenant: str) -> None:
        """Measures the tenant anew the next time."""
        with self._lock:
            self._used.pop(tenant, None)
