"""Who asks? API keys, the tenants they stand for, and the highest class each may ask for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from agentrm.config import GatewayKey
from agentrm.errors import ConfigError
from agentrm.gateway.refusals import Refused
from agentrm.identity import PRIORITIES, Priority

__all__ = ["Caller", "Keys"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from. `key`: the name of the API key, None where none are needed."""

    tenant: str
    highest: Priority
    key: str | None = None

    def priority(self, asked: str | None) -> Priority:
        """The class of a request that asks for `asked` (None: the highest there is for it). Raises Refused."""
        if asked is None:
            return self.highest
        if asked not in PRIORITIES:
            known = ", ".join(PRIORITIES)
            raise Refused(400, f"priority {asked!r} is not known; use one of {known}", "invalid_priority")
        return PRIORITIES[max(PRIORITIES.index(asked), PRIORITIES.index(self.highest))]


ANYBODY = Caller("default", "interactive")


class Keys:
    """The keys of a configuration. They are looked up by digest, so the time it takes tells nothing about them.

    Raises ConfigError where the environment lacks one.
    """

    def __init__(self, keys: Mapping[str, GatewayKey], environment: Mapping[str, str] = os.environ) -> None:
        self._callers: dict[str, Caller] = {}
        for name, key in keys.items():
            digest = key.sha256 or _digest(secret(key.env or "", f"gateway.keys.{name}.env", environment))
            if digest in self._callers:
                other = self._callers[digest].key
                raise ConfigError(f"gateway.keys.{name}", "the same key", f"a key of its own; {other!r} has this one")
            self._callers[digest] = Caller(key.tenant, key.priority, name)

    @property
    def needed(self) -> bool:
        return bool(self._callers)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Raises Refused (401) unless the request carries a key, where keys are needed."""
        if not self._callers:
            return ANYBODY
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else headers.get("api-key", "")
        if not given:
            raise Refused(401, "no API key; send it as `Authorization: Bearer KEY`", "missing_api_key")
        caller = self._callers.get(_digest(given))
        if caller is None:
            raise Refused(401, "this API key is not known here", "invalid_api_key")
        return caller


def secret(variable: str, key: str, environment: Mapping[str, str] = os.environ) -> str:
    """What an environment variable holds. Raises ConfigError if it holds nothing."""
    found = environment.get(variable, "").strip()
    if not found:
        raise ConfigError(key, variable, "the name of an environment variable that is set")
    if not found.isprintable():  # it could not stand in a header
        raise ConfigError(key, variable, "the name of a variable that holds one line of printable characters")
    return found


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()  # bytes that are no text, as they came
