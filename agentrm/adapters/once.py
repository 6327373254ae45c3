"""Tool calls at most once, also when the process is killed in the middle of one and its work is begun again.

The start and the end of each call are logged with the session. A call that ended is answered from the log; one that
started and did not end is answered with "outcome unknown", unless its tool is safe to run again. An error of a tool is
an end that may be tried again, by whoever decides to; a call whose lease was taken away may go on out of sight, so its
outcome is unknown, too, and so is one whose result is no JSON, once it has been handed out.

A plugin says which call it is, by a name that the same call has in another process: place, tool, arguments, and which
of the equal calls there it is (`call_name`)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from agentrm.context.open_calls import shown_text
from agentrm.context.sessions import Session
from agentrm.errors import LeaseError
from agentrm.threads import on_thread

__all__ = ["FAILED", "CallLog", "call_name"]

log = logging.getLogger("agentrm")
FAILED = object()
"""Stands for the result of a call that was none: it may be tried again."""

_Entry = dict[str, Any]


def call_name(*said: Any) -> str:
    """A short name of what is said, the same in every process. It has to be JSON."""
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()


class CallLog:
    """The calls of one session. `safe_tools`: names of those that may run again when their outcome is unknown."""

    def __init__(self, session: Session, safe_tools: Collection[str] = ()) -> None:
        self._session, self._safe = session, frozenset(safe_tools)

    def encode(self, result: Any) -> Any:
        """A result as JSON, or `FAILED`. One for which this raises is handed out, and can't be told another time."""
        return result

    def decode(self, data: Any) -> Any:
        """The result that `encode` wrote; a text where the outcome of the call is unknown."""
        return data

    def run(self, name: str, tool: str, work: Callable[[], Any]) -> Any:
        """`work()`, or what it returned when it was run before."""
        known = self._begin(name, tool)
        if known is not None:
            return self.decode(known["result"])
        try:
            result = work()
        except BaseException as error:
            self._failed(name, tool, error)
            raise
        self._end(name, tool, result)
        return result

    async def arun(self, name: str, tool: str, work: Callable[[], Awaitable[Any]]) -> Any:
        known = await on_thread(lambda: self._begin(name, tool))
        if known is not None:
            return self.decode(known["result"])
        try:
            result = await work()
        except BaseException as error:
            # Not in a thread: a cancelled task would be cancelled again while it waits for it.
            self._failed(name, tool, error)
            raise
        await on_thread(lambda: self._end(name, tool, result))
        return result

    def _begin(self, name: str, tool: str) -> _Entry | None:
        """Logs the start and returns None, or returns the entry of a call that is not to be run."""
        entry = self._read(name)
        if entry is not None and "result" in entry:
            return entry
        if entry is not None and entry["state"] == "started" and tool not in self._safe:
            return {"result": shown_text("interrupted")}
        self._write(name, {"state": "started"})
        return None

    def _end(self, name: str, tool: str, result: Any) -> None:
        try:
            data = self.encode(result)
            entry = _packed({"state": "failed"} if data is FAILED else {"state": "ended", "result": data})
        except Exception as error:  # noqa: BLE001 - it is no JSON; neither its work nor its answer is lost
            log.warning("tool %r gave a %s that can't be kept: %r", tool, type(result).__name__, error)
            self._unknown(name, tool)
        else:
            self._session.save_framework_state(name, entry)

    def _failed(self, name: str, tool: str, error: BaseException) -> None:
        if isinstance(error, LeaseError):
            self._unknown(name, tool)
        elif isinstance(error, Exception):
            self._write(name, {"state": "failed"})
        else:
            self._write(name, {"state": "ended", "result": shown_text("cancelled")})

    def _unknown(self, name: str, tool: str) -> None:
        known = {"state": "ended", "result": shown_text("interrupted")}
        self._write(name, {"state": "failed"} if tool in self._safe else known)

    def _read(self, name: str) -> _Entry | None:
        data = self._session.framework_state(name)
        return None if data is None else json.loads(data)

    def _write(self, name: str, entry: _Entry) -> None:
        self._session.save_framework_state(name, _packed(entry))


def _packed(entry: _Entry) -> bytes:
    return json.dumps(entry).encode()
