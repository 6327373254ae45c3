"""What a session still has to do: calls without a result, and messages that wait for their turn."""

from __future__ import annotations

from agentrm.context.messages import SYNTHETIC, Message, ToolResult, new_id
from agentrm.context.open_calls import AWAITING_APPROVAL, shown_text
from agentrm.context.sessions.core import SessionCore
from agentrm.context.sessions.errors import (
    CallFinished,
    MessageConflict,
    OutcomeUnknown,
    SessionDraining,
)
from agentrm.context.sessions.records import encode, message_bytes, message_record
from agentrm.context.sessions.state import Pending

__all__ = ["SessionWork"]


class SessionWork(SessionCore):
    """Open calls and the queue. See `Session`."""

    # -- open calls

    def open_calls(self) -> tuple[Pending, ...]:
        """The calls without a result, oldest first."""
        with self._lock:
            return tuple(self._state.pending.values())

    def await_approval(self, call_id: str, *, expires_s: float | None = None) -> None:
        """Marks an open call as waiting for a person, for at most `expires_s` seconds."""
        with self._lock:
            self._pending(call_id)
            self._log([encode("call", self._wall(), id=call_id, s="approval", expires=expires_s)])

    def approve(self, call_id: str) -> None:
        """The person agreed: the call may run."""
        with self._lock:
            self._pending(call_id)
            self._log([encode("call", self._wall(), id=call_id, s="executing")])

    def _pending(self, call_id: str) -> Pending:
        call = self._state.pending.get(call_id)
        if call is None:
            raise MessageConflict(f"session {self.name} has no open call {call_id!r}.")
        return call

    def start_call(self, call_id: str, *, safe: bool = False) -> None:
        """Logs that the call starts now; a start that is not `safe` is synced before this returns.

        Raises CallFinished if it has its result (or had it, and storing failed: it is stored now),
        OutcomeUnknown if it was started before and not ended, SessionDraining, MessageConflict for a call
        that is not open.
        """
        with self._lock:
            self._alive()
            if self._draining:
                raise SessionDraining(self.name)
            if call_id in self._unstored:
                raise CallFinished(call_id, self.finish_call(call_id, self._unstored[call_id]))
            entry = self._state.answered.get(call_id)
            if entry is not None and not entry.replaceable:
                raise CallFinished(call_id, self._message(entry))
            if call_id in self._running or not self._may_start(call_id, entry is not None, safe):
                raise OutcomeUnknown(call_id)
            nonce = self._owner.owner.nonce
            self._log([encode("call", self._wall(), id=call_id, s="start", safe=safe or None, nonce=nonce)])
            if not safe:
                self._journal.flush()
            self._running.add(call_id)
            self._begun.add(call_id)

    def _may_start(self, call_id: str, interrupted: bool, safe: bool) -> bool:
        if interrupted or safe:
            return safe
        call = self._pending(call_id)
        if call.state == AWAITING_APPROVAL:
            raise MessageConflict(f"call {call_id!r} waits for approval. Call approve() first.")
        # A start that this owner logged and could not sync did not lead to a run.
        mine = call.nonce == self._owner.owner.nonce and call_id not in self._begun
        return call.nonce is None or call.safe or mine

    def finish_call(self, call_id: str, result: str | Message, *, is_error: bool = False) -> Message:
        """Stores the call's result, which is its end. Returns the result's message.

        If a result is there already, that one is returned and this one is dropped: a call ends once. If
        storing fails the result is kept in memory, and the next `start_call` or `run_call` of this call
        stores it.
        """
        with self._lock:
            self._running.discard(call_id)
            self._idle.notify_all()
            entry = self._state.answered.get(call_id)
            if entry is not None and not entry.replaceable:
                return self._message(entry)
            if isinstance(result, Message):
                message = result
            else:
                part = ToolResult(call_id, result, is_error=is_error)
                message = Message(new_id(), "tool", (part,), created=self._wall())
            self._unstored[call_id] = message
            self.append(message)
            del self._unstored[call_id]
            return message

    def drain(self, wait_s: float = 0.0) -> tuple[str, ...]:
        """Starts no new calls and hands out no queued messages from now on; everything else still works.

        Waits up to `wait_s` seconds for the calls that run, and returns those that still do.
        """
        with self._idle:
            self._draining = True
            self._idle.wait_for(lambda: not self._running, timeout=wait_s)
            return tuple(sorted(self._running))

    def close_call(self, call_id: str, outcome: str, *, replaceable: bool = False) -> Message:
        """Closes an open call without a real result: `outcome` is cancelled, expired or interrupted."""
        with self._lock:
            self._pending(call_id)
            part = ToolResult(call_id, shown_text(outcome), is_error=True)
            now = self._wall()
            message = Message(new_id(), "tool", (part,), created=now, flags=frozenset({SYNTHETIC}))
            self._log([message_record(message, now, replaceable=replaceable)], [message])
            return message

    # -- the queue

    def enqueue(self, message: Message, *, ttl_s: float | None = None) -> None:
        """Stores a message that waits its turn, for at most `ttl_s` seconds. Works while draining, too."""
        with self._lock:
            if message.id in self._state.queue or message.id in self._state.by_id:
                return
            now = self._wall()
            expires = None if ttl_s is None else now + ttl_s
            self._log([encode("queue", now, message_bytes(message), id=message.id, expires=expires)])

    def take(self) -> Message | None:
        """The next queued message, which becomes part of the conversation in the same step; None if there is
        none.

        Messages past their time are dropped and reported by `expired`. While draining this is None.
        """
        with self._lock:
            self._alive()
            if self._draining:
                return None
            self.expire()
            for queued in self._state.queue.values():
                message = queued.message
                self._log([message_record(message, self._wall(), queue_id=queued.id)], [message])
                return message
            return None

    def queued(self) -> tuple[Message, ...]:
        """The messages that wait, in order."""
        with self._lock:
            return tuple(queued.message for queued in self._state.queue.values())

    def expire(self) -> tuple[str, ...]:
        """Drops queued messages and closes open calls that are past their time; returns their ids."""
        with self._lock:
            now = self._wall()
            late = [q.id for q in self._state.queue.values() if q.expires is not None and q.expires <= now]
            if late:
                self._log([encode("drop", now, id=queue_id, why="expired") for queue_id in late])
            calls = [c.id for c in self._state.pending.values() if c.expires is not None and c.expires <= now]
            for call_id in calls:
                self.close_call(call_id, "expired")
            return (*late, *calls)

    @property
    def expired(self) -> tuple[str, ...]:
        """The ids of all queued messages that were dropped because their time was up."""
        with self._lock:
            return tuple(key for key, why in self._state.dropped.items() if why == "expired")
