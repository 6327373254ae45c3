"""CrewAI's sync steps on threads of ours, not on those of the loop.

CrewAI runs each sync step of an agent or flow, and a whole crew under `kickoff_async`, in the loop's default executor:
six threads on two cores. Six agents that wait for a lane would keep out the one that goes first. Ours are as many as
are needed; how many are at work is for the pools to say. A step whose run was cancelled leaves its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

from agentrm.adapters import leavable

__all__ = ["free_steps"]

_FREED = "__agentrm_freed__"


def free_steps(flow: Any) -> None:
    """Of a flow, or of an agent's executor, which is one. The loop's own executor is left as it is."""
    steps: dict[Any, Callable[..., Any]] = flow._methods
    for name, step in steps.items():
        if getattr(step, _FREED, False):  # most: a crew's executor is walked for each task again
            continue
        plain = getattr(step, "__wrapped__", step)  # of the class, not of this executor, which would be kept alive
        if not (_is_async(plain) if isinstance(plain, FunctionType) else inspect.iscoroutinefunction(step)):
            steps[name] = _on_thread(step)


@lru_cache(maxsize=1024)
def _is_async(step: FunctionType) -> bool:
    """Kept: each task makes an executor of the same few steps."""
    return inspect.iscoroutinefunction(step)


def _on_thread(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await leavable(functools.partial(step, *args, **kwargs))

    setattr(run, _FREED, True)
    return run
