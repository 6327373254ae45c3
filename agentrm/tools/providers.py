"""Providers of environments by name."""

from __future__ import annotations

from agentrm.errors import ConfigError
from agentrm.extensions import load_extension
from agentrm.tools.place import Provider

__all__ = ["GROUP", "load_provider"]

GROUP = "agentrm.environments"


def load_provider(name: str, *, key: str = "provider") -> Provider:
    """A new provider of that name. Raises ConfigError if none is installed, or if it can't be loaded."""
    make = load_extension(GROUP, name, key)
    try:
        made: Provider = make()
    except Exception as error:  # whatever a stranger's code raises, the configuration is what can't work
        raise ConfigError(key, name, f"a provider that can be made ({error!r})") from error
    return made
