"""The events of a stream (SSE): passed on whole and at once, looked into only where they say something about usage."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["Frames", "FrameTooLarge"]

_TOOL = re.compile(rb'"function"\s*:\s*\{[^{}]*?"name"\s*:\s*"([^"\\]{1,200})"')
_USAGE = re.compile(rb'"(?:usage|timings)"\s*:\s*\{')
_END = re.compile(rb"\r?\n\r?\n")


class FrameTooLarge(Exception):
    """An event without an end."""


class Frames:
    """Cuts a stream into events. `hide_usage`: the event that has nothing but the usage is for us alone.

    An event goes out in the call that brings its last byte; nothing is held back but its unfinished successor.
    """

    __slots__ = ("_hide", "_most", "_rest", "events", "last", "tool")

    def __init__(self, hide_usage: bool, most_bytes: int) -> None:
        self._hide, self._most = hide_usage, most_bytes
        self._rest = bytearray()
        self.events = 0
        self.last: dict[str, Any] | None = None
        """The newest event that told the usage."""
        self.tool: str | None = None
        """The first tool that the answer asks for."""

    def feed(self, data: bytes) -> bytes:
        """What is to be passed on now. Raises FrameTooLarge."""
        whole = data if not self._rest and data.endswith(b"\n\n") else self._joined(data)
        self.events += whole.count(b"data:")
        if self.tool is None and b'"function"' in whole and (found := _TOOL.search(whole)):
            self.tool = found[1].decode("utf-8", "replace")
        told = (b'"usage"' in whole or b'"timings"' in whole) and _USAGE.search(whole)
        return self._looked_at(whole) if told else whole

    def _joined(self, data: bytes) -> bytes:
        """The events that are whole with this; what comes behind them is kept for the next."""
        rest = self._rest
        seen = max(0, len(rest) - 2)  # what stands before has no end of an event
        rest += data
        cut = max(rest.rfind(b"\n\n", seen) + 2, rest.rfind(b"\n\r\n", seen) + 3)
        whole = b"" if cut < 3 else bytes(rest[:cut])
        del rest[: len(whole)]
        if len(rest) > self._most:
            raise FrameTooLarge
        return whole

    def rest(self) -> bytes:
        """What came after the last whole event, once the stream is over."""
        return bytes(self._rest)

    def _looked_at(self, whole: bytes) -> bytes:
        kept, at = [], 0
        for end in _END.finditer(whole):
            event, at = whole[at : end.end()], end.end()
            if not (_USAGE.search(event) and self._tells(event)):
                kept.append(event)
        return b"".join(kept)

    def _tells(self, event: bytes) -> bool:
        """Notes what the event says; whether it is to be hidden."""
        data = b"\n".join(line[5:].lstrip() for line in event.splitlines() if line.startswith(b"data:"))
        try:
            frame = json.loads(data)
        except (ValueError, RecursionError):  # not ours to judge: passed on as it is
            return False
        if not isinstance(frame, dict):
            return False
        told = frame.get("response") if isinstance(frame.get("response"), dict) else frame
        if not isinstance(told, dict) or not isinstance(told.get("usage"), dict):
            return False
        self.last = told
        return self._hide and not frame.get("choices") and "response" not in frame
