"""Waiting for what has to come: as long as a slow machine may need, and never for ever."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

__all__ = ["come"]

WITHIN_S = 60.0


async def come(condition: Callable[[], object]) -> None:
    """Lets the loop go on until the condition holds. Fails, showing the condition, when that does not come."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WITHIN_S
    while not condition():
        if loop.time() > until:
            raise AssertionError(f"this did not come within {WITHIN_S:g} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.001)
