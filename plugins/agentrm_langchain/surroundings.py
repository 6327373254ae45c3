"""Where a call of LangChain finds out who makes it: the config and the runtime that it runs under.

Looked at, in this order (the arguments of `attach` and of the middleware come before, see
`agentrm.adapters.identity`):

1. the runtime context of the graph run (`agent.invoke(..., context=...)`): fields or keys `agent`,
   `priority`, `tenant`, `session`, or the same with the prefix `agentrm_`;
2. the config: `configurable`, then `metadata`, keys with the prefix `agentrm_`;
3. `with agentrm.identity(...)`;
4. LangChain's own names: `lc_agent_name` for the agent, `thread_id` for the session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config

from agentrm.adapters import Identity, first_answers, read_identity
from agentrm.identity import NOBODY, current_identity
from agentrm.restoring import restore
from agentrm.scheduling.lease import current_lease

__all__ = ["NOWHERE", "Surroundings", "here", "seen", "within"]

_RUNTIME_KEY = "__pregel_runtime"


class Surroundings(NamedTuple):  # and no frozen dataclass, which takes longer to make, for each call
    """What a layer further out saw and the call itself can't look up: the config of a bare
    `model.invoke(..., config)`, the runtime of middleware on Python 3.10, where LangGraph sets no context
    variable in tasks."""

    config: Mapping[str, Any] | None = None
    runtime: Any = None


NOWHERE = Surroundings()
_seen: ContextVar[Surroundings] = ContextVar("agentrm_langchain_surroundings", default=NOWHERE)


def seen() -> Surroundings:
    return _seen.get()


class within:
    """Round one call or one await, never across a yield. A class of its own because every call pays for it."""

    __slots__ = ("_now", "_token")

    def __init__(self, config: Mapping[str, Any] | None = None, runtime: Any = None) -> None:
        outer = _seen.get()
        self._now = Surroundings(config or outer.config, runtime or outer.runtime)

    def __enter__(self) -> None:
        self._token = _seen.set(self._now)

    def __exit__(self, *_: object) -> None:
        restore(self._token)


def here(arguments: Identity, handed: Surroundings = NOWHERE) -> tuple[Identity, Callable[[], None] | None]:
    """Who makes the call that begins here, and the heartbeat to give while it is queued (None: nobody
    listens)."""
    outer = _seen.get() if handed is NOWHERE else handed
    config, ambient = outer.config, var_child_runnable_config.get()
    of_ambient = _runtime_of(ambient)
    runtime = outer.runtime or _runtime_of(config) or of_ambient
    context = None if runtime is None else getattr(runtime, "context", None)
    said = NOBODY if context is None else read_identity(context, plain=True)
    for source in (config, ambient):
        if source:
            for part in ("configurable", "metadata"):
                if (found := read_identity(source.get(part), plain=False)) is not NOBODY:
                    said = first_answers(said, found)
    if said.priority == "interactive" and current_lease() is not None:
        said = said._replace(priority=None)  # inherited from the outer agent, which is whom the person waits for
    who = first_answers(arguments, said, current_identity())
    for source in (config, ambient):
        if source and (who.agent is None or who.session is None):
            who = first_answers(who, _own_names(source))
    beat = _heartbeat(runtime)
    return who, _heartbeat(of_ambient) if beat is None and of_ambient is not runtime else beat


def _runtime_of(config: Mapping[str, Any] | None) -> Any:
    given = config.get("configurable") if config else None
    return given.get(_RUNTIME_KEY) if given else None


def _own_names(config: Mapping[str, Any]) -> Identity:
    agent = (config.get("metadata") or {}).get("lc_agent_name")
    thread = (config.get("configurable") or {}).get("thread_id")
    return Identity(agent=str(agent) if agent else None, session=str(thread) if thread else None)


def _heartbeat(runtime: Any) -> Callable[[], None] | None:
    """The runtime's heartbeat if the node has an idle limit, else None: then it does nothing and need not
    be called."""
    if runtime is None:
        return None
    beat: Callable[[], None] | None = getattr(runtime, "heartbeat", None)
    module = sys.modules.get("langgraph.runtime")
    silent = getattr(getattr(module, "DEFAULT_RUNTIME", None), "heartbeat", None)
    return None if beat is silent else beat
