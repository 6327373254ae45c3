"""What a client is told when the gateway itself says no, in the form that OpenAI's clients read."""

from __future__ import annotations

import json
import math
from typing import Any

from agentrm.errors import AdmissionError, LeaseError, ManagerClosed, QueueFull, QueueTimeout, RequestTooLarge

__all__ = ["Refused", "refused"]

RETRY_S = 1.0
"""What `Retry-After` says where no better time is known."""


class Refused(Exception):
    """An answer of the gateway's own. `retry_after` in seconds, None: trying again does not help."""

    def __init__(self, status: int, message: str, code: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}

    def text(self) -> bytes:
        return json.dumps(self.body()).encode()

    def frame(self) -> bytes:
        """The same as an event inside a stream that has begun."""
        return b"data: " + self.text() + b"\n\n"

    def headers(self) -> dict[str, str]:
        """Whole seconds for everybody, milliseconds for OpenAI's clients."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_after is None:
            return {}
        return {
            "Retry-After": str(max(1, math.ceil(self.retry_after))),
            "retry-after-ms": str(max(1, round(self.retry_after * 1e3))),
        }


def refused(error: BaseException) -> Refused | None:
    """What an error of ours means to a client; None for errors that are not ours."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestTooLarge):
        return Refused(413, str(error), "request_too_large")
    if isinstance(error, QueueFull):
        return Refused(429, str(error), "queue_full", error.retry_after or RETRY_S)
    if isinstance(error, ManagerClosed):
        return Refused(503, str(error), "closing", RETRY_S)
    if isinstance(error, QueueTimeout):
        return Refused(503, str(error), "queue_timeout", error.retry_after or RETRY_S)
    if isinstance(error, AdmissionError):
        if error.is_retryable:
            return Refused(429, str(error), "not_admitted", error.retry_after or RETRY_S)
        return Refused(403, str(error), "not_admitted")
    if isinstance(error, LeaseError):
        return Refused(504, str(error), "call_timeout", error.retry_after)
    return None
