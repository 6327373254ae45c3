"""Providers of environments by name."""

from __future__ import annotations

from importlib.metadata import entry_points

from agentrm.errors import ConfigError
from agentrm.tools.place import Provider

__all__ = ["GROUP", "load_provider"]

GROUP = "agentrm.environments"


def load_provider(name: str, *, key: str = "provider") -> Provider:
    """A new provider of that name. Raises ConfigError if none is installed, or if it can't be loaded."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        names = ", ".join(sorted(entry_points(group=GROUP).names))
        raise ConfigError(key, name, f"one that is installed: {names}")
    try:
        made: Provider = found[0].load()()
    except Exception as error:  # whatever a stranger's module raises, the configuration is what can't work
        allowed = f"a provider that loads; this one raised {type(error).__name__}: {error}"
        raise ConfigError(key, name, allowed) from error
    return made
