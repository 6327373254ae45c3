"""Requests to the stub provider, and the wait for their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from agentrm.simulation.provider import Behaviour, RequestRecord, StubProvider

USER = {"role": "user", "content": "hello there"}
FAST = Behaviour(output_tokens=5)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **more}


def post(provider: StubProvider, *, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return httpx.post(f"{provider.base_url}/chat/completions", json=body(**more), headers=headers, timeout=10)


@contextmanager
def streamed(provider: StubProvider, **more: Any) -> Iterator[Any]:
    with httpx.stream(
        "POST", f"{provider.base_url}/chat/completions", json=body(stream=True, **more), timeout=10
    ) as reply:
        yield reply


def ended(provider: StubProvider, count: int) -> tuple[RequestRecord, ...]:
    """The records, once `count` requests have ended."""
    assert provider.wait_until(lambda now: now.ended >= count), provider.statistics()
    return provider.log
