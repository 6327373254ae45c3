"""The middleware for `create_agent`: one line, and every model and tool call of the agent goes through the
manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import is_
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage

from agentrm.adapters import CallSpec, acall, call
from agentrm_langchain.errors import translate
from agentrm_langchain.gating import make_gate
from agentrm_langchain.models import gate_model_with, is_model
from agentrm_langchain.surroundings import within
from agentrm_langchain.tool_use import use_of_request
from agentrm_langchain.tools import gate_tool_with

__all__ = ["AgentRMMiddleware"]


class AgentRMMiddleware(AgentMiddleware[Any, Any, Any]):
    """Put it last in the list: then it is innermost, and no lane is held while other middleware retries or
    waits.

        agent = create_agent(model, tools, middleware=[..., AgentRMMiddleware(rm)])

    `OnceMiddleware` goes directly before it: `[..., OnceMiddleware(store), AgentRMMiddleware(rm)]`.

    Guarantees: each model call and each tool call takes exactly one lease, also when the model is gated
    itself; streams hold it to the last chunk; both the sync and the async path are covered, and the async
    one never blocks the loop or its executor while queued; a node with an idle limit gets heartbeats
    meanwhile.

    It can't see the calls that other middleware makes with a model of its own (a summariser): give those
    `rm.attach(model)`. `models`, `tools`: what is gated. `pressure_note`: while callers have to wait, each
    model call is shown one more message that says so (`rm.pressure().note()`); it is not kept in the
    agent's state. `options` as for `gate_model`; `guards` watch the tools.
    """

    def __init__(
        self, rm: Any, *, models: bool = True, tools: bool = True, pressure_note: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self._gate = make_gate(rm, "AgentRMMiddleware", options)
        self._models, self._tools, self._notes = models, tools, pressure_note
        self._twin: _Twin | None = None

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        request = self._with_note(request)
        if not self._models:
            return handler(request)
        with within(runtime=request.runtime):
            if is_model(request.model):
                return handler(self._gated(request))
            return call(self._gate.rm, self._spec(request), lambda: handler(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        request = self._with_note(request)
        if not self._models:
            return await handler(request)
        with within(runtime=request.runtime):
            if is_model(request.model):
                return await handler(self._gated(request))
            return await acall(self._gate.rm, self._spec(request), lambda: handler(request))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if not self._tools:
            return handler(request)
        with within(runtime=request.runtime):
            if request.tool is not None:
                return handler(self._with_tool(request))
            return call(self._gate.rm, self._tool_spec(request), lambda: handler(request))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        if not self._tools:
            return await handler(request)
        with within(runtime=request.runtime):
            if request.tool is not None:
                return await handler(self._with_tool(request))
            return await acall(self._gate.rm, self._tool_spec(request), lambda: handler(request))

    def _with_note(self, request: Any) -> Any:
        """Behind everything else: what the provider has cached of the messages before it still counts."""
        note = self._gate.rm.pressure().note() if self._notes else ""
        return request.override(messages=[*request.messages, HumanMessage(note)]) if note else request

    def _gated(self, request: Any) -> Any:
        """With the model itself gated, so that an answer from the cache costs nothing and a stream is seen
        by chunk."""
        twin = self._twin
        if twin is None or not twin.stands_for(request.model):
            self._twin = twin = _Twin(request.model, gate_model_with(self._gate, request.model))
        return _with(request, model=twin.gated)

    def _with_tool(self, request: Any) -> Any:
        return _with(request, tool=gate_tool_with(self._gate, request.tool))

    def _spec(self, request: Any) -> CallSpec:
        """For a model that is chosen when it runs (`init_chat_model` with configurable fields)."""
        return self._gate.spec(kind="model", translate=translate)

    def _tool_spec(self, request: Any) -> CallSpec:
        """For a tool that another middleware provides."""
        return self._gate.spec(kind="tool", tool=request.tool_call["name"], use=use_of_request(request))


def _with(request: Any, **changed: Any) -> Any:
    """As `dataclasses.replace`, which makes it anew from its parts and takes as long as the gate."""
    copy = object.__new__(type(request))
    vars(copy).update(vars(request), **changed)
    return copy


class _Twin:
    """The gated copy of the model that was asked last: agents ask the same one again and again."""

    __slots__ = ("_made_of", "_model", "gated")

    def __init__(self, model: Any, gated: Any) -> None:
        self._model, self.gated = model, gated
        self._made_of = {**vars(model)}, {**(model.__pydantic_private__ or {})}

    def stands_for(self, model: Any) -> bool:
        """Whether it is a copy of this model as that is now."""
        return (
            model is self._model
            and _are_same(vars(model), self._made_of[0])
            and _are_same(model.__pydantic_private__ or {}, self._made_of[1])
        )


def _are_same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before)) and all(map(is_, now.values(), before.values()))
