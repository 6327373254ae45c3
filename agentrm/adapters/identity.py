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

from agentrm.config.readers import did_you_mean
from agentrm.errors import ConfigError
from agentrm.identity import NOBODY, PRIORITIES, Identity

__all__ = ["OPTIONS", "PRIORITIES", "Identity", "first_answers", "identity_of", "read_identity", "read_options"]

OPTIONS = ("pool", "wait_max", "idle_s", "run_s", "guards")
"""What an argument may say about a call beside who makes it, instead of the configuration."""

_SECONDS = frozenset({"wait_max", "idle_s", "run_s"})
_PREFIX = "agentrm_"
_NAMES = Identity._fields
_PREFIXED = tuple((name, f"{_PREFIX}{name}") for name in _NAMES)
_PREFIXED_KEYS = frozenset(prefixed for _, prefixed in _PREFIXED)
_KEYS = _PREFIXED_KEYS | frozenset(_NAMES)


def identity_of(where: str, given: Mapping[str, Any]) -> Identity:
    """From the keyword arguments of `where`. Raises `ConfigError` for a name or a value that can't be
    meant."""
    return _identity(where, given, _NAMES)


def _identity(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> Identity:
    for name, value in given.items():
        if name not in _NAMES:
            allowed = f"the arguments {', '.join(known)}{did_you_mean(name, known)}"
            raise ConfigError(f"{where}.{name}", value, allowed)
        _check(f"{where}.{name}", name, value)
    return Identity(**given)


def read_options(where: str, given: Mapping[str, Any]) -> tuple[Identity, dict[str, Any]]:
    """The keyword arguments of `where`, as an adapter takes them: those of an identity, and `OPTIONS`. Raises as
    `identity_of`."""
    options = {name: value for name, value in given.items() if name in OPTIONS and value is not None}
    for name in _SECONDS & options.keys():
        value, least = options[name], "from" if name == "wait_max" else "above"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value > 0 or (value == 0 and least == "from")):
            raise ConfigError(f"{where}.{name}", value, f"seconds, a number {least} 0")
    who = {name: value for name, value in given.items() if name not in OPTIONS}
    return _identity(where, who, (*_NAMES, *OPTIONS)), options


def first_answers(*sources: Identity) -> Identity:
    """For each field the first source that has one."""
    found = NOBODY
    for source in sources:
        if found is NOBODY:
            found = source
        elif source is not NOBODY and None in found:
            (a, b, c, d), (e, f, g, h) = found, source
            found = Identity(
                e if a is None else a, f if b is None else b, g if c is None else c, h if d is None else d
            )
    return found


def read_identity(holder: Any, *, plain: bool) -> Identity:
    """The identity in a framework's mapping or object, from `agentrm_agent`, `agentrm_priority` and so on,
    and with `plain` from `agent`, `priority`, `tenant` and `session` too. A prefixed value that can't be
    meant raises `ConfigError`; a plain one is the user's own field and left alone."""
    if not holder or (type(holder) is dict and holder.keys().isdisjoint(_KEYS if plain else _PREFIXED_KEYS)):
        return NOBODY
    found: dict[str, Any] = {}
    for name, prefixed in _PREFIXED:
        value = _get(holder, prefixed)
        if value is not None:
            _check(prefixed, name, value)
            found[name] = value
        elif plain:
            value = _get(holder, name)
            is_ours = isinstance(value, str) and (name != "priority" or value in PRIORITIES)
            if is_ours and value:
                found[name] = value
    return Identity(**found) if found else NOBODY


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, dict) or isinstance(holder, Mapping):  # the first is much quicker to tell
        return holder.get(name)
    return getattr(holder, name, None)


def _check(key: str, name: str, value: Any) -> None:
    if value is None:
        return
    if name == "priority" and value not in PRIORITIES:
        raise ConfigError(key, value, ", ".join(PRIORITIES))
    if not isinstance(value, str) or not value:
        raise ConfigError(key, value, "a name, not empty")
