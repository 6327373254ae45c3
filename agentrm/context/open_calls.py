"""Which tool calls have no result yet, why, and until when?

A call without a result is `executing` (somebody runs it) or `awaiting_approval` (a person is asked). It
stays open until it is answered, cancelled or expired, survives every compaction, and is shown to the model
with a replaceable placeholder. A call that nobody knows of is lost: `agentrm.context.pairs.repair` closes
it with a synthetic result.

Time is a parameter: seconds on whatever clock the caller uses for `since` and `expires`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrm.errors import AgentRMError

EXECUTING = "executing"
AWAITING_APPROVAL = "awaiting_approval"

ANSWERED, CANCELLED, EXPIRED, INTERRUPTED = "answered", "cancelled", "expired", "interrupted"

_SHOWN = {
    EXECUTING: "[pending: this call is still running; its result will replace this line]",
    AWAITING_APPROVAL: "[pending: this call awaits a person's approval; its result will replace this line]",
    CANCELLED: "[cancelled: this call was cancelled and did not complete]",
    EXPIRED: "[expired: no answer to this call came in time; ask again if it is still needed]",
    INTERRUPTED: "[no result: this call was interrupted, its outcome is unknown; check before repeating]",
}


class OpenCallError(AgentRMError, ValueError):
    """A call was opened, answered or closed in a state that does not allow it."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """One open call. `since` and `expires` are seconds; `expires` None means: until answered or cancelled."""

    id: str
    name: str = ""
    state: str = EXECUTING
    since: float | None = None
    expires: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "since": self.since,
            "expires": self.expires,
        }


class OpenCalls:
    """The open calls of one session and how the others ended.

    Not thread-safe: its session's lock guards it.
    """

    __slots__ = ("_closed", "_open")

    def __init__(self) -> None:
        self._open: dict[str, OpenCall] = {}
        self._closed: dict[str, str] = {}

    @classmethod
    def of(cls, states: Mapping[str, str]) -> OpenCalls:
        """Open calls from `{call id: state}` without times."""
        calls = cls()
        for call_id, state in states.items():
            calls.open(call_id, state=state)
        return calls

    def open(
        self,
        call_id: str,
        *,
        name: str = "",
        state: str = EXECUTING,
        now: float | None = None,
        expires_after: float | None = None,
    ) -> OpenCall:
        """Marks a call as open, or changes the state of an open one.

        Raises `OpenCallError` if it was closed.
        """
        if state not in (EXECUTING, AWAITING_APPROVAL):
            raise OpenCallError(
                f"call {call_id!r}: state {state!r} is none of {EXECUTING}, {AWAITING_APPROVAL}"
            )
        if call_id in self._closed:
            raise OpenCallError(
                f"call {call_id!r} was {self._closed[call_id]}; make a new call with a new id"
            )
        if expires_after is not None and now is None:
            raise OpenCallError(f"call {call_id!r}: expires_after needs now")
        expires = None if expires_after is None or now is None else now + expires_after
        call = OpenCall(call_id, name, state, now, expires)
        self._open[call_id] = call
        return call

    def answer(self, call_id: str) -> bool:
        """True when the answer counts.

        False when the call was never opened or is closed: the answer is late.
        """
        return self._close(call_id, ANSWERED)

    def cancel(self, call_id: str) -> bool:
        return self._close(call_id, CANCELLED)

    def interrupt(self, call_id: str) -> bool:
        """Closes a call whose executor is gone."""
        return self._close(call_id, INTERRUPTED)

    def expire(self, now: float) -> tuple[OpenCall, ...]:
        """Closes what is past its time and returns it."""
        late = tuple(c for c in self._open.values() if c.expires is not None and c.expires <= now)
        for call in late:
            self._close(call.id, EXPIRED)
        return late

    def _close(self, call_id: str, how: str) -> bool:
        if self._open.pop(call_id, None) is None:
            return False
        self._closed[call_id] = how
        return True

    def is_open(self, call_id: str) -> bool:
        return call_id in self._open

    def outcome(self, call_id: str) -> str | None:
        """`executing`, `awaiting_approval`, `answered`, `cancelled`, `expired`, `interrupted`;

        None if unknown.
        """
        call = self._open.get(call_id)
        return call.state if call is not None else self._closed.get(call_id)

    def __iter__(self) -> Iterator[OpenCall]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def to_json(self) -> dict[str, Any]:
        return {"open": [c.to_json() for c in self._open.values()], "closed": dict(self._closed)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpenCalls:
        calls = cls()
        for entry in data["open"]:
            call = OpenCall(entry["id"], entry["name"], entry["state"], entry["since"], entry["expires"])
            calls._open[call.id] = call
        calls._closed = dict(data["closed"])
        return calls


def shown_text(outcome: str | None) -> str:
    """What the model reads in place of a result that is not there."""
    return _SHOWN.get(outcome or INTERRUPTED, _SHOWN[INTERRUPTED])
