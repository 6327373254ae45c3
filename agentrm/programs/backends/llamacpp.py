"""llama.cpp's server: one program per slot, written out to files and read back through `/slots`.

It has no gauge of KV use and no priorities, but it is the one engine with a swap per program. Two servers of one model
with the same `--slot-save-path` can take over each other's programs. Names as in the builds of 2026.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrm.programs.backends.metrics_text import Metrics
from agentrm.programs.backends.protocol import (
    Backend,
    Capabilities,
    Reply,
    Settings,
    Signals,
    Transport,
    TransportError,
    Usage,
    openai_usage,
)
from agentrm.programs.backends.slots import Slot, Slots

__all__ = ["LlamaCpp"]

_log = logging.getLogger("agentrm.backends")
_SUFFIX = ".agentrm.kv"


class LlamaCpp(Backend):
    """Signals need `--metrics` and `--slots`; the swap needs `--slot-save-path` and `settings.swap_dir`, the same
    folder as this process sees it. A program whose state can't be saved or read is computed anew, never refused."""

    def __init__(self, name: str, transport: Transport, settings: Settings | None = None) -> None:
        super().__init__(name, transport, settings)
        self._slots = Slots()
        self._held: dict[tuple[str, int], Slot] = {}
        """Slots in use, by program and number (a number comes again when the engine was started anew)."""
        self._folder = Path(self.settings.swap_dir) if self.settings.swap_dir else None
        self.saved = self.restored = self.failed = 0
        """States written out, read back, and lost on the way, so far."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(swap=self._folder is not None)

    async def signals(self) -> Signals:
        health, page, slots = await asyncio.gather(
            self.transport.request("GET", "/health"),
            self.transport.request("GET", "/metrics"),
            self.transport.request("GET", "/slots"),
        )
        contexts = _contexts(slots)
        if contexts is not None:
            self._slots.resize(len(contexts))
        metrics = Metrics(page.body.decode("utf-8", "replace") if page.status == 200 else "")
        computed = metrics.total("llamacpp:prompt_tokens_total")
        cached = metrics.total("llamacpp:prompt_tokens_cached_total")
        return Signals(
            healthy=health.status == 200,
            running=metrics.total("llamacpp:requests_processing"),
            waiting=metrics.total("llamacpp:requests_deferred"),
            capacity=sum(contexts) if contexts else None,
            hit_tokens=cached,
            query_tokens=None if computed is None or cached is None else computed + cached,
            engines=1,
        )

    async def open(self, program: str, priority: int) -> Mapping[str, Any]:
        fields: dict[str, Any] = {"cache_prompt": True}
        if not len(self._slots):
            return fields
        slot = await self._slots.take(program)
        try:
            if slot.program != program:
                if slot.program is not None:
                    await self._save(slot)
                slot.program = None
                await self._restore(slot, program)
                slot.program = program
        except BaseException:
            self._slots.give(slot)
            raise
        self._held[program, slot.number] = slot
        return {**fields, "id_slot": slot.number}

    def close(self, program: str, fields: Mapping[str, Any]) -> None:
        slot = self._held.pop((program, fields.get("id_slot", -1)), None)
        if slot is not None:
            self._slots.give(slot)

    async def pause(self, program: str) -> bool:
        slot = self._slots.of(program)
        if slot is None:
            return False
        self._slots.claim(slot)
        try:
            saved = await self._save(slot)
            slot.program = None  # the state stays in the slot until somebody overwrites it, but the file is newer
            return saved
        finally:
            self._slots.give(slot)

    async def forget(self, program: str) -> None:
        slot = self._slots.of(program)
        if slot is not None:
            slot.program = None
        if self._folder is not None:
            _unlink(self._folder / _file(program))

    def reset(self) -> None:
        self._slots.emptied()

    def clean(self, idle_s: float) -> int:
        """Removes saved states that are older than `idle_s` seconds: their programs did not come back. How many."""
        if self._folder is None or not self._folder.is_dir():
            return 0
        oldest = time.time() - idle_s  # the time of files is the wall clock's
        old = [path for path in self._folder.glob(f"*{_SUFFIX}") if _changed(path) < oldest]
        for path in old:
            _unlink(path)
        return len(old)

    def usage(self, reply: Mapping[str, Any]) -> Usage | None:
        used, timings = openai_usage(reply), reply.get("timings")
        if used is None or used.cached is not None or not isinstance(timings, Mapping):
            return used
        cached = timings.get("cache_n")
        return Usage(used.prompt, used.completion, cached if isinstance(cached, int) else None)

    async def _save(self, slot: Slot) -> bool:
        if self._folder is None or slot.program is None:
            return False
        saved = await self._act(slot, "save", slot.program)
        self.saved += saved
        return saved

    async def _restore(self, slot: Slot, program: str) -> None:
        if self._folder is not None and (self._folder / _file(program)).exists():
            self.restored += await self._act(slot, "restore", program)

    async def _act(self, slot: Slot, action: str, program: str) -> bool:
        path = f"/slots/{slot.number}?action={action}"
        try:
            reply = await self.transport.request("POST", path, {"filename": _file(program)})
        except TransportError as error:
            reply = Reply(0, str(error).encode())
        if reply.status == 200:
            return True
        self.failed += 1
        _log.warning(
            "%s could not %s the state of program %r (%s); it will be computed anew",
            self.name, action, program, reply.body.decode("utf-8", "replace")[:300],
        )  # fmt: skip
        return False


def _contexts(slots: Reply) -> list[int] | None:
    """The tokens that each slot holds; None where the engine does not show its slots."""
    if slots.status != 200:
        return None
    try:
        return [int(slot["n_ctx"]) for slot in json.loads(slots.body)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # an answer of another shape says nothing
        return None


def _file(program: str) -> str:
    """A name of letters and digits for any id, so that no id leads out of the folder."""
    return hashlib.sha256(program.encode()).hexdigest()[:32] + _SUFFIX


def _changed(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # gone meanwhile
        return float("inf")


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
