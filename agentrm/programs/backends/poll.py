"""Asks all backends at once how they are. One that hangs delays nobody and is unknown until it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from agentrm.programs.backends.protocol import UNKNOWN, Backend, Signals, TransportError, believable

__all__ = ["poll"]

_log = logging.getLogger("agentrm.backends")


async def poll(backends: Iterable[Backend], limit_s: float) -> dict[str, Signals]:
    """The signals of each backend by name; `UNKNOWN` for one that gives no answer within `limit_s` seconds."""
    asked = {backend.name: asyncio.ensure_future(_ask(backend)) for backend in backends}
    if asked:
        try:
            await asyncio.wait(asked.values(), timeout=limit_s)
        finally:
            for question in asked.values():
                question.cancel()
    return {name: UNKNOWN if not one.done() or one.cancelled() else one.result() for name, one in asked.items()}


async def _ask(backend: Backend) -> Signals:
    try:
        return believable(await backend.signals())
    except TransportError:
        return UNKNOWN
    except Exception:  # noqa: BLE001 - a stranger's backend that fails is one that is not known, and never stops the others
        _log.exception("the signals of %s can't be read", backend.name)
        return UNKNOWN
