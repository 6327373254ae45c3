"""Which store a URL means: `sqlite:///path`, `memory:`, or a scheme registered under `agentrm.stores`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from agentrm.errors import ConfigError
from agentrm.storage.protocols import Store
from agentrm.storage.sqlite import SqliteStore

__all__ = ["open_store"]


def _sqlite(url: str, **options: Any) -> Store:
    return SqliteStore(url.removeprefix("sqlite://").removeprefix("/") or None, **options)


def _memory(url: str, **options: Any) -> Store:
    return SqliteStore(None, **options)


def open_store(url: str, **options: Any) -> Store:
    """The store behind `url`; options go to it. `sqlite:///a/b.db` is relative, `sqlite:////a/b.db` absolute.

    An entry point of the group `agentrm.stores` is named like its scheme and is called as `factory(url,
    **options)`. Raises ConfigError for an unknown scheme; errors of the store's own opening pass through.
    """
    scheme = url.partition(":")[0]
    built_in = {"sqlite": _sqlite, "memory": _memory}
    if scheme in built_in:
        return built_in[scheme](url, **options)
    found = entry_points(group="agentrm.stores")
    for item in found:
        if item.name == scheme:
            store: Store = item.load()(url, **options)
            return store
    known = sorted({*built_in, *(item.name for item in found)})
    raise ConfigError("context.store", url, f"a URL with one of the schemes {', '.join(known)}")
