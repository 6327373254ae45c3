"""One session: a conversation in three tiers, its open calls, its queue, its settings, and one owner.

Tier 2 is the journal: every message as it came, never changed. Tier 0 is what the model sees: all messages
until a compaction replaces some of them. Tier 1 is the search index and what compactions wrote. What a
returned `append` guarantees is the journal's `fsync` setting (see `agentrm.storage.journal`). All methods may
be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.messages import SYNTHETIC, Message, make
from agentrm.context.pairs import repair
from agentrm.context.result import CompactionResult, check_tokens
from agentrm.context.sessions.errors import MessageNotFound
from agentrm.context.sessions.records import encode
from agentrm.context.sessions.resources import Resource, describe
from agentrm.context.sessions.state import blob_prefix
from agentrm.context.sessions.view import Hit
from agentrm.context.sessions.work import SessionWork

__all__ = ["Recovery", "Session"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found when the session was opened; all empty after a clean close.

    `interrupted` calls got a durable result "outcome unknown" and are not run again by themselves.
    `rerunnable` calls are open and may be run: they never started, or they are marked as safe. `lost` names
    attached resources that are gone; the model is told by one notice.
    """

    warnings: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    rerunnable: tuple[str, ...] = ()
    awaiting_approval: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()  # queued messages and calls whose time was up
    lost: tuple[str, ...] = ()
    taken_over_from: int | None = None  # the process id of an owner that died


class Session(SessionWork):
    """Made by `SessionStore.open` and `.restore`; closed by `close`, `hibernate` or leaving its `with` block.

    `recovered` says what opening found. A closed session raises SessionClosed, one that another owner took
    over SessionLost, and neither stores anything.
    """

    recovered: Recovery = Recovery()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._closed:
            self.close()

    # -- reading

    def messages(self) -> tuple[Message, ...]:
        """The whole conversation, valid for a strict provider: open calls have a replaceable "pending"
        result.
        """
        with self._lock:
            found = [self._message(entry) for entry in self._state.conversation()]
            return repair(found, self._state.open_calls()).messages

    def verbatim(self) -> tuple[Message, ...]:
        """Every message as it was appended, in that order, stand-ins for lost results included."""
        with self._lock:
            return tuple(self._message(entry) for entry in self._state.entries)

    def recall(self, message_id: str) -> Message:
        """One message as it was appended, wherever it is now. Raises MessageNotFound, DamagedData."""
        with self._lock:
            entry = self._state.by_id.get(message_id)
            if entry is None:
                raise MessageNotFound(self.name, message_id)
            return self._message(entry)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` messages whose words fit the query best (BM25), best first, over the whole conversation."""
        with self._lock:
            self._catch_up()
            found = self._index.search(self.tenant, self._index_name, query, k)
            entries = {entry.sequence: entry for entry in self._state.entries}
            return [
                Hit(entry.id, score, entry.role, entry.at)
                for sequence, score in found
                if (entry := entries.get(sequence)) is not None
            ]

    def _catch_up(self) -> None:
        """The index is derived from the journal and is brought up to it when it is needed, not on each
        append.
        """
        done = self._index.indexed_to(self.tenant, self._index_name)
        if done > self._state.sequence:  # the tail that it knows was lost
            self._index.forget(self.tenant, self._index_name)
            done = 0
        todo = [entry for entry in self._state.entries if entry.sequence > done]
        if todo:
            texts = ((entry.sequence, self._message(entry).text) for entry in todo)
            self._index.add(self.tenant, self._index_name, texts, self._state.sequence)

    # -- tier 0

    def tier0(self) -> tuple[Message, ...]:
        """What the model would see now, without any new compaction; valid."""
        with self._lock:
            items = [
                item if isinstance(item, Message) else self._message(self._state.by_id[item])
                for item in self._state.view
            ]
            return repair(items, self._state.open_calls()).messages

    def context(self, budget: int, query: str | None = None) -> tuple[Message, ...]:
        """What the model should see within `budget` tokens.

        Without a query this is tier 0. Above the high watermark (a share of the budget) it is compacted
        first, down to the low one, and the result stays tier 0: between two compactions the list only grows,
        so the provider's prefix cache holds. With a query (what the next request is about) and a history that
        does not fit, the budget is filled from the whole conversation with what that request needs; this one
        request sees it, tier 0 stays. Raises ConfigError for a budget that is no number of 0 or more.
        """
        check_tokens("budget", budget)
        shown = self.tier0()
        counter = self._compactor.counter
        if query is not None:
            whole = self.messages()
            if len(whole) == len(shown) and counter.messages(shown) <= budget:
                return shown
            calls = self._state.open_calls()
            return self._compactor.compact(whole, budget, query=query, open_calls=calls).messages
        if counter.messages(shown) > self._high * budget:
            self.compact(int(self._low * budget))
            return self.tier0()
        return shown

    def compact(self, target: int) -> CompactionResult:
        """Brings tier 0 down to `target` tokens and stores that. Messages that arrive meanwhile are carried
        over.

        If another thread's compaction was stored first, this one's result is returned but not stored.
        Raises ConfigError for a target that is no number of 0 or more.
        """
        check_tokens("target", target)
        with self._lock:
            self._alive()
            before, views = len(self._state.view), self._state.views
            shown, calls = self.tier0(), self._state.open_calls()
        made = self._compactor.compact(shown, target, open_calls=calls)
        if made.changed:
            with self._lock:
                if self._state.views == views:
                    self.set_view([*made.messages, *self._state.view[before:]])
        return made

    def set_view(self, items: Sequence[Message | str]) -> None:
        """Makes these messages (or ids of messages) tier 0 and stores that. Tier 2 keeps everything."""
        with self._lock:
            stored: list[Any] = []
            for item in items:
                if isinstance(item, str) or self._is_stored(item):
                    stored.append(item if isinstance(item, str) else item.id)
                elif not item.id.endswith(".pending"):  # shown for an open call, made anew each time
                    stored.append(item.to_json())
            unknown = [item for item in stored if isinstance(item, str) and item not in self._state.by_id]
            if unknown:
                raise MessageNotFound(self.name, unknown[0])
            self._log([encode("view", self._wall(), items=stored)])
            kept = {item for item in self._state.view if isinstance(item, str)}
            for entry in self._state.entries:
                if entry.id not in kept:
                    entry.message = entry.raw = None  # in tier 2; recall() reads it from there

    def _is_stored(self, message: Message) -> bool:
        entry = self._state.by_id.get(message.id)
        return entry is not None and (entry.message is message or self._message(entry) == message)

    # -- resources and notices

    def attach(self, name: str, location: str, *, kind: str = "path") -> None:
        """Notes a resource the agent relies on; a restore reports it if it is gone. Attach again to note
        changes.

        Of a `path` the files in it are noted too (names, at most 1,000). Other kinds need a checker at the
        store.
        """
        with self._lock:
            held = dict(self.get("resources", {}))
            held[name] = describe(kind, location)
            self.set("resources", held)

    def resources(self) -> dict[str, Resource]:
        """The attached resources by name."""
        return {name: Resource(**value) for name, value in self.get("resources", {}).items()}

    def notify(self, text: str) -> Message:
        """Adds a notice for the model to the conversation."""
        message = make("user", text, flags={SYNTHETIC}, name="agentrm", created=self._wall())
        self.append(message)
        return message

    # -- framework state

    def save_framework_state(self, adapter: str, state: bytes) -> None:
        """Keeps a framework's own state (opaque bytes, one per adapter name); hibernation takes it along."""
        with self._lock:
            self._alive()
            self._blobs.put(self.tenant, f"{blob_prefix(self.id)}framework/{adapter}", state)

    def framework_state(self, adapter: str) -> bytes | None:
        """The state last saved under this adapter's name."""
        blob = self._blobs.get(self.tenant, f"{blob_prefix(self.id)}framework/{adapter}")
        return blob.value if blob is not None else None

    # -- the end

    @property
    def last_active(self) -> float:
        """When the last record was stored, in seconds since 1970."""
        return self._state.last_at

    def flush(self) -> None:
        """Syncs what was stored (nothing to do with fsync="never")."""
        with self._lock:
            self._alive()
            self._journal.flush()

    def close(self) -> None:
        """Syncs, updates the listing, gives the session up. Closing twice is fine."""
        self._finish("closed")

    def hibernate(self) -> str:
        """Writes the hibernation file, closes the session and returns the file's path.

        Messages queued until then are in it. Calls that still run are open in it; `drain(wait_s)` first lets
        them end. Raises WriteFailed or StorageFull, with the session still open.
        """
        with self._lock:
            self._alive()
            draining, self._draining = self._draining, True
            try:
                path = self._sleep(self)
            except BaseException:
                self._draining = draining
                raise
            self._finish("hibernated")
            return path

    def _finish(self, how: str) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = how
            try:
                self._journal.close()
                if how == "closed":
                    self._left(self)
            finally:
                self._owner.release()
