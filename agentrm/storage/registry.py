"""Which store a URL means: `sqlite:///path`, `memory:`, or a scheme registered under `agentrm.stores`."""

from __future__ import annotations

from typing import Any

from agentrm.extensions import load_extension
from agentrm.storage.protocols import Store
from agentrm.storage.sqlite import SqliteStore

__all__ = ["open_store"]


def sqlite(url: str, **options: Any) -> Store:
    """A file."""
    return SqliteStore(url.removeprefix("sqlite://").removeprefix("/") or None, **options)


def memory(url: str, **options: Any) -> Store:
    """Gone with the process."""
    return SqliteStore(None, **options)


_BUILT_IN = {"sqlite": sqlite, "memory": memory}


def open_store(url: str, **options: Any) -> Store:
    """The store behind `url`; options go to it. `sqlite:///a/b.db` is relative, `sqlite:////a/b.db` absolute.

    An entry point of the group `agentrm.stores` is named like its scheme and is called as `factory(url,
    **options)`. (The built-in ones are entry points like any other; reading the installed packages is spared for them.)
    Raises ConfigError for an unknown scheme or a plugin that can't be loaded; errors of the store's own opening pass
    through.
    """
    scheme = url.partition(":")[0]
    factory = _BUILT_IN.get(scheme) or load_extension("agentrm.stores", scheme, "context.store")
    store: Store = factory(url, **options)
    return store
