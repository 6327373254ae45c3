"""Failures in the shapes that clients of providers give them, and how they are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentrm.limits.provider_errors import ProviderError, read_error

WALL = 1_760_000_000.0


class ClientError_(Exception):
    """The shape of most clients' errors: status_code, body, response with headers."""

    def __init__(
        self,
        status: int | None = None,
        body: object = None,
        headers: dict[str, str] | None = None,
        text: str = "failed",
    ) -> None:
        super().__init__(text)
        if status is not None:
            self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers=headers or {})


def read(exc: BaseException) -> ProviderError:
    error = read_error(exc, wall=WALL)
    assert error is not None
    return error


def named(name: str, *bases: type[BaseException], text: str = "failed", **attributes: object) -> Exception:
    made: type[Any] = type(name, bases or (Exception,), attributes)
    exc = made(text)
    assert isinstance(exc, Exception)
    return exc
