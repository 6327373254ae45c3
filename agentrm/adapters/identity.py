"""Who makes a call: how an adapter puts the answer together from the places where a framework keeps it.

The order, first answer wins, for each of agent, priority, tenant and session on its own:

1. arguments: `rm.attach(x, agent=...)`, `AgentRMMiddleware(rm, priority=...)` and the like, the line that
   made this agent;
2. the framework's per-call context, then its configuration (each adapter documents where it looks);
3. `with agentrm.identity(...)` round the call;
4. what the framework itself calls the agent and the conversation;
5. the defaults of the manager: agent and tenant `default`, priority `interactive`, or `subagent` within
   another call.

Within another call (a tool that runs a sub-agent) per-call contexts are usually inherited from the outer
agent. So `interactive` from there is not taken for the inner one: the person waits for the outer agent. An
argument is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrm.errors import ConfigError
from agentrm.identity import PRIORITIES, Identity

__all__ = ["PRIORITIES", "Identity", "first_answers", "identity_of", "read_identity"]

_PREFIX = "agentrm_"
_NAMES = Identity._fields


def identity_of(where: str, given: Mapping[str, Any]) -> Identity:
    """From the keyword arguments of `where`. Raises `ConfigError` for a name or a value that can't be
    meant."""
    for name, value in given.items():
        if name not in _NAMES:
            raise ConfigError(f"{where}.{name}", value, f"one of {', '.join(_NAMES)}")
        _check(f"{where}.{name}", name, value)
    return Identity(**given)


def first_answers(*sources: Identity) -> Identity:
    """For each field the first source that has one."""
    found: dict[str, Any] = {}
    for name in _NAMES:
        answers = (getattr(source, name) for source in sources)
        found[name] = next((answer for answer in answers if answer is not None), None)
    return Identity(**found)


def read_identity(holder: Any, *, plain: bool) -> Identity:
    """The identity in a framework's mapping or object, from `agentrm_agent`, `agentrm_priority` and so on,
    and with `plain` from `agent`, `priority`, `tenant` and `session` too. A prefixed value that can't be
    meant raises `ConfigError`; a plain one is the user's own field and left alone."""
    if holder is None:
        return Identity()
    found: dict[str, Any] = {}
    for name in _NAMES:
        value = _get(holder, _PREFIX + name)
        if value is not None:
            _check(_PREFIX + name, name, value)
            found[name] = value
        elif plain:
            value = _get(holder, name)
            is_ours = isinstance(value, str) and (name != "priority" or value in PRIORITIES)
            found[name] = value if is_ours and value else None
    return Identity(**found)


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _check(key: str, name: str, value: Any) -> None:
    if value is None:
        return
    if name == "priority" and value not in PRIORITIES:
        raise ConfigError(key, value, ", ".join(PRIORITIES))
    if not isinstance(value, str) or not value:
        raise ConfigError(key, value, "a name, not empty")
