"""Which kinds of backends there are: the entry points `agentrm.backends`, by name."""

from __future__ import annotations

from importlib.metadata import entry_points

from agentrm.errors import ConfigError
from agentrm.extensions import load_extension
from agentrm.programs.backends.protocol import Backend

__all__ = ["GROUP", "kinds", "load"]

GROUP = "agentrm.backends"


def kinds() -> tuple[str, ...]:
    """The names of all installed kinds."""
    return tuple(sorted(entry_points(group=GROUP).names))


def load(kind: str) -> type[Backend]:
    """The class of a kind. Raises ConfigError for a kind that is not installed, can't be loaded or is no backend."""
    loaded = load_extension(GROUP, kind, "kind")
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise ConfigError("kind", kind, f"a subclass of agentrm.programs.backends.Backend; {loaded!r} is none")
    return loaded
