"""Tool calls of LangChain agents at most once, also when the process is killed in the middle of one.

LangGraph runs a step again that did not end. `OnceMiddleware` logs the start and the end of each tool call
beside the thread's checkpoints; a call that ended is answered from the log, one that started and did not end
is answered with "outcome unknown", unless its tool is in `safe_tools`. Errors of a tool are an end that may
be tried again, by whoever decides to; a call whose lease was taken away (a time-out of the manager) may go on
out of sight, so its end is "outcome unknown", too, as is that of one whose result can't be written down, once it has
been handed out; interrupts for a person are no end, the call runs when the graph is resumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import quote

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.types import Command

from agentrm.context.open_calls import shown_text
from agentrm.context.sessions import SessionStore, blob_prefix
from agentrm.errors import LeaseError
from agentrm.storage import VersionConflict
from agentrm_langchain.packing import pack, unpack

__all__ = ["OnceMiddleware"]

log = logging.getLogger("agentrm")
_Result = ToolMessage | Command[Any]
_STARTED = pack(b"started")


class OnceMiddleware(AgentMiddleware):
    """Put it last in `middleware=[...]`, so that it stands next to the tool; only `AgentRMMiddleware` goes behind it:

        middleware=[..., OnceMiddleware(store), AgentRMMiddleware(rm)]

    Then an answer from the log takes no lane, a call that was not admitted counts as not begun, and one that the
    manager took the lane from is not run again.

    Without a `thread_id` in the config there is nothing to come back to, and calls pass through. Two runs
    that start the same call at the same time: one runs it, the other answers "outcome unknown".
    """

    def __init__(self, sessions: SessionStore, *, tenant: str = "default", safe_tools: Collection[str] = ()) -> None:
        super().__init__()
        self._blobs, self._tenant, self._safe = sessions.blobs, tenant, frozenset(safe_tools)
        self._serde = JsonPlusSerializer()

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], _Result]) -> _Result:
        key = self._key(request)
        if key is None:
            return handler(request)
        answer = self._begin(key, request)
        if answer is not None:
            return answer
        try:
            result = handler(request)
        except BaseException as error:
            self._failed(key, request, error)
            raise
        self._ended(key, request, result)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[_Result]]
    ) -> _Result:
        key = self._key(request)
        if key is None:
            return await handler(request)
        answer = await asyncio.to_thread(self._begin, key, request)
        if answer is not None:
            return answer
        try:
            result = await handler(request)
        except BaseException as error:
            # Not in a thread: a cancelled task would be cancelled again while it waits for it.
            self._failed(key, request, error)
            raise
        await asyncio.to_thread(self._ended, key, request, result)
        return result

    def _key(self, request: ToolCallRequest) -> str | None:
        """Thread, message and call: providers use call ids again in later turns."""
        thread = get_config().get("configurable", {}).get("thread_id")
        if thread is None:
            return None
        call_id = str(request.tool_call["id"])
        state: Any = request.state
        messages = state.get("messages", []) if isinstance(state, dict) else getattr(state, "messages", [])
        owner = next(
            (
                message.id or ""
                for message in reversed(messages)
                if isinstance(message, AIMessage) and any(c["id"] == call_id for c in message.tool_calls)
            ),
            "",
        )
        return f"{blob_prefix(thread)}langgraph-calls/{quote(owner, safe='')}/{quote(call_id, safe='')}"

    def _begin(self, key: str, request: ToolCallRequest) -> _Result | None:
        """Logs the start and returns None, or returns the answer of a call that is not to be run."""
        blob = self._blobs.get(self._tenant, key)
        if blob is not None:
            kind, *data = unpack(blob.value)
            if kind != b"started":
                answer: _Result = self._serde.loads_typed((kind.decode(), data[0]))
                return answer
            if request.tool_call["name"] not in self._safe:
                return _stand_in(request, "interrupted")
        try:
            self._blobs.put(self._tenant, key, _STARTED, expect=blob.version if blob is not None else 0)
        except VersionConflict:
            return _stand_in(request, "interrupted")
        return None

    def _ended(self, key: str, request: ToolCallRequest, result: _Result) -> None:
        try:
            entry = self._packed(result)
        except Exception as error:  # noqa: BLE001 - it can't be written; neither its work nor its answer is lost
            log.warning("tool %r gave a result that can't be kept: %r", request.tool_call["name"], error)
            self._unknown(key, request)
        else:
            self._blobs.put(self._tenant, key, entry)

    def _end(self, key: str, result: _Result) -> None:
        self._blobs.put(self._tenant, key, self._packed(result))

    def _packed(self, result: _Result) -> bytes:
        kind, data = self._serde.dumps_typed(result)
        return pack(kind.encode(), data)

    def _failed(self, key: str, request: ToolCallRequest, error: BaseException) -> None:
        if isinstance(error, LeaseError):  # a thread may be left that goes on
            self._unknown(key, request)
        elif isinstance(error, Exception):  # interrupts of LangGraph (GraphBubbleUp) among them
            self._blobs.delete(self._tenant, [key])
        else:
            self._end(key, _stand_in(request, "cancelled"))

    def _unknown(self, key: str, request: ToolCallRequest) -> None:
        if request.tool_call["name"] in self._safe:
            self._blobs.delete(self._tenant, [key])
        else:
            self._end(key, _stand_in(request, "interrupted"))


def _stand_in(request: ToolCallRequest, outcome: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(shown_text(outcome), tool_call_id=call["id"], name=call["name"], status="error")
