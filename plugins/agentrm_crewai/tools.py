"""A tool whose every run takes a lane of the tool pool, however CrewAI gets at it.

Native function calling uses `run`, the text protocol a captured `_run`, code of your own perhaps `arun`; the tools of
`@tool` run their function without `_run`. All four are gated."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from crewai.tools.base_tool import BaseTool, Tool

from agentrm.adapters import CallSpec, ToolUse, acall, acall_blocking, call
from agentrm.adapters.copies import gated_copy, like, plain_view
from agentrm_crewai.gating import Gate, current_work, make_gate, spec_of

__all__ = ["StoredTool", "gate_tool", "gate_tool_with"]

B = TypeVar("B", bound=BaseTool)


def gate_tool(rm: Any, tool: B, **options: Any) -> B:
    """A copy of `tool` that runs under a lease of the pool `tools`; `tool` itself stays as it is.

    What the tool runs (a crew, say) is nested in its lease. A tool without async code that is awaited is queued without
    a thread and runs on one of ours. Tools are never run again. `options` as for `gate_llm`."""
    return gate_tool_with(make_gate(rm, "gate_tool", options), tool)


def gate_tool_with(gate: Gate, tool: B) -> B:
    return gated_copy(tool, gate, _methods)


class StoredTool(BaseTool):
    """Stands for a tool in a checkpoint: a checkpoint has no code. `attach` on the crew that has it brings it back."""

    def _run(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"tool {self.name!r} came out of a checkpoint, which holds no code. Build the crew as before, "
            "rm.attach(crew), then crew.kickoff(from_checkpoint=...)"
        )


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    return {
        "run": _sync(cls, gate, "run"),
        "_run": _sync(cls, gate, "_run"),
        "arun": _async(cls, gate, "arun", "run"),
        "_arun": _async(cls, gate, "_arun", "_run"),
        "model_dump": _model_dump(cls),
    }


def _spec(gate: Gate, tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSpec:
    return spec_of(gate, kind="tool", tool=tool.name, use=ToolUse(lambda: [args, kwargs]))


def _sync(cls: type[Any], gate: Gate, name: str) -> Callable[..., Any]:
    @like(getattr(cls, name))
    def _(self: Any, *args: Any, **kwargs: Any) -> Any:
        native, spec = getattr(plain_view(self, cls), name), _spec(gate, self, args, kwargs)

        def run() -> Any:
            return call(gate.rm, spec, lambda: _awaited(native(*args, **kwargs)))

        work = current_work()
        return run() if work is None or work.log is None else work.log.once(work, self, (args, kwargs), run)

    return _


def _async(cls: type[Any], gate: Gate, name: str, blocking: str) -> Callable[..., Any]:
    @like(getattr(cls, name))
    async def _(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain, spec = plain_view(self, cls), _spec(gate, self, args, kwargs)

        def run() -> Awaitable[Any]:
            if _is_async(self, cls):
                return acall(gate.rm, spec, lambda: getattr(plain, name)(*args, **kwargs))
            return acall_blocking(gate.rm, spec, lambda: _awaited(getattr(plain, blocking)(*args, **kwargs)))

        work = current_work()
        return await (run() if work is None or work.log is None else work.log.aonce(work, self, (args, kwargs), run))

    return _


def _is_async(tool: Any, cls: type[Any]) -> bool:
    if cls._arun is Tool._arun:
        return inspect.iscoroutinefunction(tool.func)
    return cls._arun is not BaseTool._arun


def _awaited(result: Any) -> Any:
    """On a thread of ours, which has no loop: the lease covers the coroutine's work, as CrewAI's `run` would do it."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _model_dump(cls: type[Any]) -> Callable[..., dict[str, Any]]:
    @like(cls.model_dump)
    def _(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """For a checkpoint, which asks for JSON: without the function, which can't be written, and so that it can be
        read where the tool's module is not there."""
        if kwargs.get("mode") != "json":
            return cls.model_dump(self, *args, **kwargs)  # type: ignore[no-any-return]
        said = {name: getattr(self, name) for name in BaseTool.model_fields}
        said.pop("cache_function")
        stored = StoredTool.model_construct(**said)
        return BaseTool.model_dump(stored, *args, **kwargs)

    return _
