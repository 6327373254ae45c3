"""The guards against runaway agents round each tool call of a framework.

Guards that are in force (`with rm.guard(...):`, or given to the adapter) see every tool call made by `call`, `acall`
or `acall_blocking`: a circle is refused before the call takes a lane, and a warning reaches the agent with the result.
A plugin says by a `ToolUse` in its `CallSpec` what the agent asked and how the framework's results are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrm.errors import AgentRMError
from agentrm.limits.guards import Call, current_guards

if TYPE_CHECKING:
    from agentrm.adapters.spec import CallSpec

__all__ = ["ToolUse", "guarded", "is_watched"]

log = logging.getLogger("agentrm")
_UNREAD = object()
"""Like nothing else, as guards compare what was said."""


def _with_text(result: Any, note: str) -> Any:
    return f"{result}\n\n{note}" if isinstance(result, str) else result


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the guards look at.

    - `arguments()`: what the agent asked with, without what a framework adds (states, ids of calls, callbacks).
    - `said(result)`: what of a result counts, without what differs each time (ids of messages). Of an exception
      that the tool raised too; None: it is no outcome (an interrupt for a person) and not counted.
    - `noted(result, note)`: the result with a note for the agent. By default text is added to text, and any other
      result stays as it is: its agent is refused without having been warned."""

    arguments: Callable[[], Any]
    said: Callable[[Any], Any] = lambda outcome: repr(outcome) if isinstance(outcome, BaseException) else outcome
    noted: Callable[[Any, str], Any] = _with_text


def is_watched(spec: CallSpec) -> bool:
    """Whether there are guards that want to see the call: most calls have none."""
    return spec.use is not None and spec.kind == "tool" and (spec.guards or current_guards()) is not None


@contextmanager
def guarded(spec: CallSpec) -> Iterator[Callable[[Any], Any]]:
    """Round one tool call that is watched; the block passes the result through the function that it gets. Raises
    LoopDetected if the call is not to be made."""
    guards, use = spec.guards or current_guards(), spec.use
    if guards is None or use is None:
        raise ValueError("this call is not watched")
    asked = Call(spec.tool or "tool", _read(_UNREAD, use.arguments), spec.agent or guards.root.agent)
    guards.before(asked)

    def seen(result: Any) -> Any:
        note = guards.after(asked, _read(_UNREAD, use.said, result))
        return result if note is None else _read(result, use.noted, result, note)

    try:
        yield seen
    except AgentRMError:  # the call was not made, or was taken away: it says nothing about what the tool answers
        raise
    except Exception as error:
        said = _read(_UNREAD, use.said, error)
        note = None if said is None else guards.after(asked, said)
        if note is not None:
            _read(None, use.noted, error, note)
        raise


def _read(otherwise: Any, reader: Callable[..., Any], *of: Any) -> Any:
    """What a plugin reads of a call. What it can't read costs no call that may have acted by then."""
    try:
        return reader(*of)
    except Exception:
        log.warning("a tool call can't be watched: its arguments or its result can't be read", exc_info=True)
        return otherwise
