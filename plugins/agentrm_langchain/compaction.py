"""Middleware that keeps what a model sees within a number of tokens, without a model call of its own.

LangChain's own ways summarise with a model, or cut where the count says. Here each tool call keeps its one result, ids
and other facts are copied by code, and nothing is called."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AnyMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import NotRequired

from agentrm.adapters import on_thread
from agentrm.context.compact import Compactor
from agentrm.context.convert_langchain import from_langchain, to_langchain
from agentrm.context.messages import Message
from agentrm.errors import ConfigError

__all__ = ["CompactionMiddleware"]

View = dict[str, Any]


class CompactionState(AgentState[Any]):
    """`agentrm_view`: what stands for the first `covers` messages, whose digest is `of`, as JSON of neutral ones."""

    agentrm_view: NotRequired[Annotated[View, PrivateStateAttr]]


class CompactionMiddleware(AgentMiddleware[CompactionState, Any, Any]):
    """What the model sees of a conversation stays within `max_tokens`.

    Above `high` (a share of `max_tokens`) it is compacted in one batch down to `low`; between two compactions it only
    grows, which keeps the provider's prefix cache. With `keep_history` the conversation in the agent's state stays
    whole and the model is shown the compacted one, which the state keeps as well, so a checkpoint resumes with it;
    without it the conversation itself is replaced.

    `max_tokens`: what messages may take, without the system prompt and the tools' schemas. `compactor`: one of
    `agentrm.context.compact`, with a summariser or a counter of your own. Raises ConfigError for shares that are not
    0 < low <= high <= 1."""

    state_schema = CompactionState

    def __init__(
        self,
        max_tokens: int,
        *,
        high: float = 0.8,
        low: float = 0.5,
        keep_history: bool = True,
        compactor: Compactor | None = None,
    ) -> None:
        super().__init__()
        if type(max_tokens) is not int or max_tokens <= 0:
            raise ConfigError("CompactionMiddleware.max_tokens", max_tokens, "a whole number of tokens above 0")
        if not 0 < low <= high <= 1:
            raise ConfigError("CompactionMiddleware.low, high", (low, high), "shares with 0 < low <= high <= 1")
        self._mark, self._target, self._keep_history = high * max_tokens, int(low * max_tokens), keep_history
        self._compactor = compactor or Compactor()

    def before_model(self, state: CompactionState, runtime: Any) -> dict[str, Any] | None:
        shown = _shown(state["messages"], state.get("agentrm_view"))
        return self._update(state, shown) if self._is_due(shown) else None

    async def abefore_model(self, state: CompactionState, runtime: Any) -> dict[str, Any] | None:
        shown = _shown(state["messages"], state.get("agentrm_view"))
        return await on_thread(lambda: self._update(state, shown)) if self._is_due(shown) else None

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(_seen(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(_seen(request))

    def _is_due(self, shown: Sequence[Message]) -> bool:
        return self._compactor.counter.messages(shown) > self._mark

    def _update(self, state: CompactionState, shown: Sequence[Message]) -> dict[str, Any]:
        kept = self._compactor.compact(shown, self._target).messages
        if not self._keep_history:
            return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *to_langchain(kept)]}
        whole = from_langchain(state["messages"])
        view = {"covers": len(whole), "of": _digest(whole), "messages": [message.to_json() for message in kept]}
        return {"agentrm_view": view}


def _shown(messages: Sequence[AnyMessage], view: View | None) -> list[Message]:
    """The view, then what came since. A conversation that was changed before that point is shown as it is."""
    whole = from_langchain(messages)
    if view is None or _digest(whole[: view["covers"]]) != view["of"]:
        return whole
    return [*map(Message.from_json, view["messages"]), *whole[view["covers"] :]]


def _digest(messages: Sequence[Message]) -> str:
    told = hashlib.blake2b(digest_size=16)
    for message in messages:
        told.update(f"{message.id}\0{message.role}\0{message.text}\0".encode("utf-8", "surrogatepass"))
    return told.hexdigest()


def _seen(request: ModelRequest[Any]) -> ModelRequest[Any]:
    state: Any = request.state
    view = state.get("agentrm_view")
    if view is None:
        return request
    return request.override(messages=to_langchain(_shown(request.messages, view)))
