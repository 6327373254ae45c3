"""The base of a session: its files, its lock, its folded records; adding messages; settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentrm.context.messages import Message
from agentrm.context.sessions.errors import MessageConflict, SessionClosed
from agentrm.context.sessions.index import TextIndex
from agentrm.context.sessions.owner import OwnerLock
from agentrm.context.sessions.records import decode, encode, message_of, message_record
from agentrm.context.sessions.state import Entry, SessionState
from agentrm.context.sessions.view import Compactor
from agentrm.storage import BlobStore, Journal, Record

__all__ = ["SessionCore"]


class SessionCore:
    """What every part of a session stands on. See `Session`."""

    def __init__(
        self,
        *,
        tenant: str,
        session: str,
        journal: Journal,
        state: SessionState,
        lock: OwnerLock,
        index: TextIndex,
        blobs: BlobStore,
        wall: Callable[[], float],
        charge: Callable[[int], None],
        sleep: Callable[[Any], str],
        left: Callable[[Any], None],
        compactor: Compactor,
        watermarks: tuple[float, float],
    ) -> None:
        self.tenant, self.id = tenant, session
        self._journal, self._state, self._owner, self._index = journal, state, lock, index
        self._wall, self._charge, self._compactor = wall, charge, compactor
        self._blobs, self._sleep, self._left = blobs, sleep, left
        self.created, self.active_before_opening = state.created, state.last_at
        self._index_name = f"{session}\n{state.created}"  # a new session of an old name finds no old words
        self._lock = threading.RLock()
        self._closed = ""
        self._draining = False
        self._running: set[str] = set()  # calls that this owner runs now
        self._begun: set[str] = set()  # calls that this owner has let run
        self._unstored: dict[str, Message] = {}  # results whose storing failed
        self._idle = threading.Condition(self._lock)
        self._high, self._low = watermarks

    @property
    def name(self) -> str:
        """`tenant/session`, for texts."""
        return f"{self.tenant}/{self.id}"

    def __repr__(self) -> str:
        how = self._closed or ("draining" if self._draining else self.status)
        return f"<Session {self.name} {how} messages={len(self._state.entries)}>"

    def __len__(self) -> int:
        return len(self._state.entries)

    # -- writing

    def _alive(self) -> None:
        if self._closed:
            raise SessionClosed(self.name, self._closed)
        self._owner.check()

    def _log(self, payloads: Sequence[bytes], messages: Sequence[Message | None] = ()) -> None:
        """Stores records and folds them in; the lock is held."""
        self._alive()
        self._charge(sum(map(len, payloads)))
        self._fold(self._journal.append_many(payloads), messages)

    def _fold(self, records: Sequence[Record], messages: Sequence[Message | None]) -> None:
        for number, record in enumerate(records):
            fields, raw = decode(record.payload)
            message = messages[number] if messages else None
            place = (record.segment, record.offset, record.size)
            self._state.apply(fields, raw, place, record.sequence, message)

    def append(self, message: Message) -> None:
        """Adds a message to the conversation. Appending the same message again (same id and content) does
        nothing.

        Raises MessageConflict for an id that another message has and for a second result of a call,
        SessionClosed, SessionLost, QuotaExceeded, StorageFull, WriteFailed; nothing was added then and the
        call can be made again.
        """
        self.extend((message,))

    def extend(self, messages: Iterable[Message]) -> None:
        """Adds several messages with one write: all of them or none."""
        with self._lock:
            fresh: list[Message] = []
            ids: set[str] = set()
            for message in messages:
                entry = self._state.by_id.get(message.id)
                if entry is not None and self._message(entry) == message:
                    continue
                if entry is not None or message.id in ids:
                    raise MessageConflict(
                        f"session {self.name} has another message with the id {message.id!r}. Give this one a new id."
                    )
                self._refuse_second_result(message)
                ids.add(message.id)
                fresh.append(message)
            if fresh:
                now = self._wall()
                payloads = [message_record(message, now) for message in fresh]
                if self._state.settings.get("status") == "interrupted" and fresh[-1].role == "user":
                    self._log([encode("set", now, key="status", value="active")])
                self._log(payloads, fresh)

    def _refuse_second_result(self, message: Message) -> None:
        for result in message.results:
            entry = self._state.answered.get(result.call_id)
            if entry is not None and not entry.replaceable:
                raise MessageConflict(
                    f"call {result.call_id!r} has its result already (message {entry.id!r}); "
                    "a second one was not added."
                )

    def _message(self, entry: Entry) -> Message:
        if entry.message is not None:
            return entry.message
        raw = entry.raw
        if raw is None:
            raw = decode(self._journal.read_at(*entry.place))[1] or ""
        message = message_of(raw)
        if entry.raw is not None:  # it is in memory anyway: once as an object is enough
            entry.message, entry.raw = message, None
        return message

    @property
    def status(self) -> str:
        """`active`, `done`, `failed`, `interrupted`, `awaiting_approval` while a call waits for a person."""
        if any(call.state == "awaiting_approval" for call in self._state.pending.values()):
            return "awaiting_approval"
        return str(self._state.settings.get("status", "active"))

    def set_status(self, status: str) -> None:
        """Sets the status that listings, the idle sweep and a restore show."""
        self.set("status", status)

    def set(self, key: str, value: Any) -> None:
        """Stores a JSON value under `key` (None removes it): budgets, pressure, anything the application
        needs.
        """
        with self._lock:
            self._log([encode("set", self._wall(), key=key, value=value)])

    def get(self, key: str, default: Any = None) -> Any:
        """The value last set under `key`."""
        return self._state.settings.get(key, default)
