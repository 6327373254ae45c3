"""Tools whose every call takes a lane of the tool pool, in a workbench that never raises.

An agent waits for ever for a tool call that raised or was cancelled, so each ends in a result here: the tool's, or one
that says what went wrong. It is a `StaticStreamWorkbench` by type, which is what agents ask for before they listen to
the events of agents and teams inside a tool."""

from __future__ import annotations

import asyncio
import copy
import functools
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.tools import (
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    StreamTool,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from agentrm.adapters import ToolUse, acall, acall_blocking
from agentrm_autogen.gating import Gate, make_gate, placed, start

__all__ = ["GatedWorkbench", "failed", "gate_workbench"]

Log = Callable[[str, Mapping[str, Any] | None, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs a call of a tool by its name with its arguments, or knows what came of it (`agentrm_autogen.keeping`)."""

_END: Any = object()
_CANCELLED = "The call was cancelled before it ended."
_TELLS_CANCELLATIONS = sys.version_info >= (3, 11)
"""Whether a task knows that it was cancelled itself and did not only await what was."""


class GatedWorkbenchConfig(BaseModel):
    """What a dumped `GatedWorkbench` consists of."""

    workbench: ComponentModel
    gate: dict[str, Any]


class GatedWorkbench(StaticStreamWorkbench, Component[GatedWorkbenchConfig]):
    """A workbench of any kind whose tools run under leases of the pool `tools`.

    Guarantees: one lease per call, until the tool ended; `call_tool` and `call_tool_stream` never raise, they give an
    error result, also when the cancellation token is used (a task that is cancelled itself is cancelled); a sub-agent
    or team inside a tool is nested in its lease. A sync function runs on a thread of its own with the caller's context
    variables; cancelled, its lane is a zombie's until it ends. Tools are not tried again. `options` as for
    `GatedClient`."""

    component_config_schema = GatedWorkbenchConfig  # type: ignore[assignment]
    component_provider_override = "agentrm_autogen.GatedWorkbench"
    gate: Gate
    workbench: Workbench

    def __init__(self, rm: Any, workbench: Workbench, **options: Any) -> None:
        self._start(make_gate(rm, "GatedWorkbench", options), workbench)

    def _start(self, gate: Gate, workbench: Workbench) -> None:
        if isinstance(workbench, GatedWorkbench) and gate.replaces(workbench.gate):  # not gated twice
            gate, workbench = gate.over(workbench.gate), workbench.workbench
        self.gate, self.workbench = gate, workbench
        self._calls, self._threaded = _threaded(gate, workbench)
        self.log: Log | None = None

    def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The tool's events, then its ToolResult."""
        token = cancellation_token or CancellationToken()
        return self._events(True, name, arguments, token, call_id)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        result = None
        async for event in self._events(False, name, arguments, cancellation_token or CancellationToken(), call_id):
            result = event
        return result if isinstance(result, ToolResult) else failed(name, "The tool ended without a result.")

    async def _events(
        self,
        streams: bool,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken,
        call_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        original = getattr(self._calls, "_override_name_to_original", {}).get(name, name)
        call = (original, arguments, token, call_id)
        if self._is_plain(original):
            yield await self._result(name, call)
            return
        events: asyncio.Queue[Any] = asyncio.Queue()
        work = start(self.gate, lambda: self._run(events, streams, call))
        token.link_future(work)
        work.add_done_callback(lambda _: events.put_nowait(_END))
        try:
            while (event := await events.get()) is not _END:
                yield event
        finally:
            work.cancel()
        if work.cancelled():
            yield failed(name, _CANCELLED)
        elif (error := work.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            yield failed(name, self._format_errors(error) or type(error).__name__)

    def _is_plain(self, name: str) -> bool:
        """Whether the call has no events and its workbench ends it by itself when the token says so: then it needs no
        task of ours, which would cost more than the lease."""
        if not _TELLS_CANCELLATIONS or type(self._calls).call_tool is not StaticWorkbench.call_tool:
            return False
        tools = getattr(self._calls, "_tools", ())
        return not any(isinstance(tool, StreamTool) and tool.name == name for tool in tools)

    async def _result(self, name: str, call: tuple[Any, ...]) -> Any:
        task: Any = asyncio.current_task()
        before = task.cancelling()
        try:
            return await placed(self.gate, lambda: self._leased(call, lambda: self._calls.call_tool(*call)))
        except asyncio.CancelledError:
            if task.cancelling() > before:  # the caller himself, not the tool
                raise
            return failed(name, _CANCELLED)
        except Exception as error:  # noqa: BLE001 - the agent's to read
            return failed(name, self._format_errors(error) or type(error).__name__)

    async def _run(self, events: asyncio.Queue[Any], streams: bool, call: tuple[Any, ...]) -> None:
        """Hands out what the tool says while it runs, and its result once its lane is free."""

        async def work() -> Any:
            if not (streams and isinstance(self._calls, StaticStreamWorkbench)):
                return await self._calls.call_tool(*call)
            result = None
            async for event in self._calls.call_tool_stream(*call):
                if isinstance(event, ToolResult):
                    result = event
                else:
                    events.put_nowait(event)
            return result

        events.put_nowait(await self._leased(call, work))

    async def _leased(self, call: tuple[Any, ...], work: Callable[[], Awaitable[Any]]) -> Any:
        if self.log is not None:
            return await self.log(call[0], call[1], lambda: self._admitted(call, work))
        return await self._admitted(call, work)

    async def _admitted(self, call: tuple[Any, ...], work: Callable[[], Awaitable[Any]]) -> Any:
        name, arguments, token, _ = call
        if name in self._threaded:  # takes its lease itself
            return await work()
        use = ToolUse(lambda: arguments, _said, _noted)
        spec = self.gate.spec(kind="tool", tool=name, use=use, on_wait=token.link_future)
        return await acall(self.gate.rm, spec, work)

    async def list_tools(self) -> list[ToolSchema]:
        return await self._calls.list_tools()

    async def start(self) -> None:
        await self._calls.start()

    async def stop(self) -> None:
        await self._calls.stop()

    async def reset(self) -> None:
        await self._calls.reset()

    async def save_state(self) -> Mapping[str, Any]:
        return await self._calls.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        await self._calls.load_state(state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_calls":
            raise AttributeError(name)
        return getattr(self._calls, name)

    def _to_config(self) -> GatedWorkbenchConfig:  # type: ignore[override]
        return GatedWorkbenchConfig(workbench=self.workbench.dump_component(), gate=self.gate.to_config())

    @classmethod
    def _from_config(cls, config: GatedWorkbenchConfig) -> GatedWorkbench:  # type: ignore[override]
        return gate_workbench(Gate.from_config(config.gate), Workbench.load_component(config.workbench))


def gate_workbench(gate: Gate, workbench: Workbench) -> GatedWorkbench:
    gated = GatedWorkbench.__new__(GatedWorkbench)
    gated._start(gate, workbench)
    return gated


def _said(outcome: Any) -> Any:
    return outcome.to_text() if isinstance(outcome, ToolResult) else repr(outcome)


def _noted(result: Any, note: str) -> Any:
    if not isinstance(result, ToolResult):
        return result
    return result.model_copy(update={"result": [*result.result, TextResultContent(content=note)]})


def failed(name: str, why: str) -> ToolResult:
    return ToolResult(name=name, result=[TextResultContent(content=why)], is_error=True)


class _ThreadedTool(FunctionTool):
    """A tool of a sync function that queues without a thread and then gets one of its own: the loop's executor is small
    and loses the context variables."""

    _gate: Gate

    async def run(self, args: BaseModel, cancellation_token: CancellationToken) -> Any:
        named = {name: getattr(args, name) for name in self._signature.parameters if hasattr(args, name)}
        if self._has_cancellation_support:
            named["cancellation_token"] = cancellation_token
        spec = self._gate.spec(kind="tool", tool=self.name, use=ToolUse(lambda: args.model_dump()))
        call = functools.partial(self._func, **named)
        return await placed(self._gate, lambda: acall_blocking(self._gate.rm, spec, call))


def _threaded(gate: Gate, workbench: Workbench) -> tuple[Workbench, frozenset[str]]:
    """The workbench with its sync function tools replaced, and their names: itself where there are none."""
    tools = list(getattr(workbench, "_tools", ()))
    replaced = {}
    for i, tool in enumerate(tools):
        if type(tool).run is FunctionTool.run and not asyncio.iscoroutinefunction(tool._func):
            replaced[tool.name] = tools[i] = twin = cast(Any, object.__new__(_ThreadedTool))
            vars(twin).update(vars(tool), _gate=gate)
    if not replaced:
        return workbench, frozenset()
    changed: Any = copy.copy(workbench)
    changed._tools = tools
    return changed, frozenset(replaced)
