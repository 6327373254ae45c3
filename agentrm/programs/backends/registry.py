"""Which kinds of backends there are: the entry points `agentrm.backends`, by name."""

from __future__ import annotations

from importlib.metadata import entry_points

from agentrm.errors import ConfigError
from agentrm.programs.backends.protocol import Backend

__all__ = ["GROUP", "kinds", "load"]

GROUP = "agentrm.backends"


def kinds() -> tuple[str, ...]:
    """The names of all installed kinds."""
    return tuple(sorted(entry_points(group=GROUP).names))


def load(kind: str) -> type[Backend]:
    """The class of a kind. Raises ConfigError for a kind that is not installed or is no backend."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == kind]
    if not found:
        raise ConfigError("kind", kind, "one of " + (", ".join(kinds()) or "none: agentrm is not installed"))
    loaded = found[0].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise ConfigError("kind", kind, f"a subclass of agentrm.programs.backends.Backend; {loaded!r} is none")
    return loaded
