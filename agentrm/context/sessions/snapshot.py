"""A session read from its journal without becoming its owner: for listings, exports and checks."""

from __future__ import annotations

from agentrm.context.messages import Message
from agentrm.context.pairs import repair
from agentrm.context.sessions.errors import MessageNotFound
from agentrm.context.sessions.index import TextIndex
from agentrm.context.sessions.records import decode, message_of
from agentrm.context.sessions.state import Entry, SessionState
from agentrm.context.sessions.view import Hit
from agentrm.storage import Replay

__all__ = ["Snapshot"]


class Snapshot:
    """What the journal held when it was read. Open calls are shown as they stand; nothing is repaired on
    disk.
    """

    def __init__(self, tenant: str, session: str, replay: Replay) -> None:
        self.tenant, self.id = tenant, session
        self.warnings = replay.warnings
        self.records = len(replay.records)
        self.state = SessionState()
        for record in replay.records:
            fields, raw = decode(record.payload)
            self.state.apply(fields, raw, (record.segment, record.offset, record.size), record.sequence)

    def __len__(self) -> int:
        return len(self.state.entries)

    @property
    def status(self) -> str:
        """As `Session.status`."""
        if any(call.state == "awaiting_approval" for call in self.state.pending.values()):
            return "awaiting_approval"
        return str(self.state.settings.get("status", "active"))

    def _message(self, entry: Entry) -> Message:
        assert entry.raw is not None
        return message_of(entry.raw)

    def verbatim(self) -> tuple[Message, ...]:
        """Every message as it was appended."""
        return tuple(self._message(entry) for entry in self.state.entries)

    def messages(self) -> tuple[Message, ...]:
        """The conversation, valid for a strict provider."""
        found = [self._message(entry) for entry in self.state.conversation()]
        return repair(found, self.state.open_calls()).messages

    def tier0(self) -> tuple[Message, ...]:
        """What the model would see."""
        items = [m if isinstance(m, Message) else self.recall(m) for m in self.state.view]
        return repair(items, self.state.open_calls()).messages

    def recall(self, message_id: str) -> Message:
        """One message as it was appended. Raises MessageNotFound."""
        entry = self.state.by_id.get(message_id)
        if entry is None:
            raise MessageNotFound(f"{self.tenant}/{self.id}", message_id)
        return self._message(entry)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """As `Session.search`, with an index made for this one question."""
        index = TextIndex(None)
        entries = {entry.sequence: entry for entry in self.state.entries}
        texts = ((number, self._message(entry).text) for number, entry in entries.items())
        index.add(self.tenant, self.id, texts, self.state.sequence)
        found = index.search(self.tenant, self.id, query, k)
        index.close()
        return [Hit(entries[n].id, score, entries[n].role, entries[n].at) for n, score in found]
