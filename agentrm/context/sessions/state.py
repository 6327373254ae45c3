"""What a session is after a list of records: a pure fold, so that live, replayed and restored sessions
are equal.

No file, no clock, no lock: `apply` takes one decoded record and its place, everything else only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentrm.context.messages import Message
from agentrm.context.open_calls import AWAITING_APPROVAL, EXECUTING, OpenCalls
from agentrm.context.sessions.records import message_of

__all__ = ["Entry", "Pending", "Place", "Queued", "SessionState", "blob_prefix"]

Place = tuple[int, int, int]  # segment, offset, size in the journal


def blob_prefix(session: str) -> str:
    """What the keys of a session's own blobs begin with."""
    return f"sessions/{session}/"


class Entry:
    """One message of the conversation:

    where it is, what it is, and the message itself while it is in memory.
    """

    __slots__ = ("answers", "at", "calls", "id", "message", "place", "raw", "replaceable", "role", "sequence")

    def __init__(
        self,
        fields: Mapping[str, Any],
        place: Place,
        sequence: int,
        raw: str | None,
        message: Message | None,
    ) -> None:
        self.id: str = fields["id"]
        self.role: str = fields["r"]
        self.at: float = fields["at"]
        self.calls: tuple[str, ...] = tuple(fields.get("c", ()))
        self.answers: tuple[str, ...] = tuple(fields.get("a", ()))
        self.replaceable: bool = fields.get("rep", False)
        self.place, self.sequence, self.raw, self.message = place, sequence, raw, message


class Queued:
    """A message that waits for its turn. `expires` is in seconds since 1970, None for never."""

    __slots__ = ("at", "expires", "id", "raw")

    def __init__(self, id: str, raw: str, at: float, expires: float | None) -> None:
        self.id, self.raw, self.at, self.expires = id, raw, at, expires

    @property
    def message(self) -> Message:
        return message_of(self.raw)


class Pending:
    """A call without a result. `nonce` is the owner that logged its start, None while no start was logged.

    `safe` says that running it twice does no harm, `expires` is in seconds since 1970.
    """

    __slots__ = ("expires", "id", "message_id", "nonce", "safe", "since", "state")

    def __init__(self, id: str, message_id: str, since: float) -> None:
        self.id, self.message_id, self.since = id, message_id, since
        self.state = EXECUTING
        self.nonce: str | None = None
        self.safe = False
        self.expires: float | None = None


class SessionState:
    """The folded records. `settings` holds the `set` records, newest value per key."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.by_id: dict[str, Entry] = {}
        self.view: list[str | Message] = []  # tier 0: ids of messages, or what stands in their place
        self.views = 0  # how many compactions there were
        self.queue: dict[str, Queued] = {}
        self.dropped: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.pending: dict[str, Pending] = {}
        self.answered: dict[str, Entry] = {}  # the result of each call that has one
        self.replaced: dict[str, Entry] = {}  # stand-ins by id, and the real results that came later
        self.logs_calls = False  # true once a start was logged: from then on "no start" means "not started"
        self.tenant = self.session = ""
        self.created = self.last_at = 0.0
        self.sequence = 0

    def apply(
        self,
        fields: Mapping[str, Any],
        raw: str | None,
        place: Place,
        sequence: int,
        message: Message | None = None,
    ) -> None:
        """Folds one record in. Kinds of later versions are passed over."""
        self.sequence = sequence
        self.last_at = fields["at"]
        kind: str = fields["t"]
        if kind == "msg" and (raw is not None or message is not None):
            self._message(Entry(fields, place, sequence, raw if message is None else None, message))
            self.queue.pop(fields.get("q", ""), None)
            return
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, fields, raw)

    def _message(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.by_id[entry.id] = entry
        self.view.append(entry.id)
        for call_id in entry.calls:
            self.answered.pop(call_id, None)  # an id may be used again in a later turn: this is another call
            self.pending[call_id] = Pending(call_id, entry.id, entry.at)
        for call_id in entry.answers:
            earlier = self.answered.get(call_id)
            if earlier is not None and earlier.replaceable:
                self.replaced[earlier.id] = entry
                self.view.pop()
                self.view = [entry.id if item == earlier.id else item for item in self.view]
            if earlier is None or earlier.replaceable:
                self.answered[call_id] = entry
            self.pending.pop(call_id, None)

    def _begin(self, fields: Mapping[str, Any], raw: str | None) -> None:
        self.tenant, self.session, self.created = fields["tenant"], fields["session"], fields["at"]

    def _call(self, fields: Mapping[str, Any], raw: str | None) -> None:
        self.logs_calls |= fields["s"] == "start"
        call = self.pending.get(fields["id"])
        if call is None:
            return
        call.state = AWAITING_APPROVAL if fields["s"] == "approval" else EXECUTING
        if fields["s"] == "start":
            call.nonce, call.safe = fields.get("nonce", ""), fields.get("safe", False)
        if "expires" in fields:
            call.expires = fields["at"] + fields["expires"]

    def _queue(self, fields: Mapping[str, Any], raw: str | None) -> None:
        if raw is not None:
            self.queue[fields["id"]] = Queued(fields["id"], raw, fields["at"], fields.get("expires"))

    def _drop(self, fields: Mapping[str, Any], raw: str | None) -> None:
        if self.queue.pop(fields["id"], None) is not None:
            self.dropped[fields["id"]] = fields["why"]

    def _view(self, fields: Mapping[str, Any], raw: str | None) -> None:
        self.views += 1
        self.view = [
            self._newest(item) if isinstance(item, str) else Message.from_json(item) for item in fields["items"]
        ]

    def _newest(self, message_id: str) -> str:
        """The real result where a compaction still had its stand-in."""
        real = self.replaced.get(message_id)
        return real.id if real is not None else message_id

    def _set(self, fields: Mapping[str, Any], raw: str | None) -> None:
        if fields.get("value") is None:
            self.settings.pop(fields["key"], None)
        else:
            self.settings[fields["key"]] = fields["value"]

    _HANDLERS: Mapping[str, Callable[[SessionState, Mapping[str, Any], str | None], None]] = {
        "begin": _begin,
        "call": _call,
        "queue": _queue,
        "drop": _drop,
        "view": _view,
        "set": _set,
    }

    def conversation(self) -> Iterator[Entry]:
        """The messages in order; a late real result stands where its stand-in stood."""
        moved = {entry.id for entry in self.replaced.values()}
        for entry in self.entries:
            if entry.id in self.replaced:
                yield self.replaced[entry.id]
            elif entry.id not in moved:
                yield entry

    def open_calls(self) -> OpenCalls:
        """The open calls in the form that `agentrm.context.pairs.repair` reads."""
        return OpenCalls.of({call.id: call.state for call in self.pending.values()})
