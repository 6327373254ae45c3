"""Which installed adapter gates this object? Found through the entry points of the group `agentrm.adapters`.

Lazy and by name: an adapter is loaded when something is to be attached that it may know, first the one
named like the object's package. No framework is imported to find out. An adapter that can't be loaded, or
fails, never keeps another one from working; what went wrong is told as a warning, kept in `failures()`, and
said in the error when nothing else fits."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrm.errors import AgentRMError

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["GROUP", "Adapter", "AdapterWarning", "AttachError", "adapter", "attach", "failures", "names"]

GROUP = "agentrm.adapters"
DISABLE = "AGENTRM_DISABLE_ADAPTERS"
"""An environment variable: names of adapters not to load, separated by commas."""


class AdapterWarning(UserWarning):
    """An installed adapter could not be loaded or failed on an object that another one may know."""


class AttachError(AgentRMError, TypeError):
    """This object can't be gated by `attach`. `instead` is the line to write, None if there is none."""

    def __init__(self, x: object, why: str, instead: str | None = None) -> None:
        self.why, self.instead = why, instead
        cls = type(x)
        text = f"can't attach {cls.__module__}.{cls.__qualname__}: {why}"
        super().__init__(text if instead is None else f"{text}. Write instead:\n    {instead}")


@runtime_checkable
class Adapter(Protocol):
    """What an entry point's value must be. Importing it must load no framework."""

    name: str
    packages: tuple[str, ...]
    """Top-level packages whose classes it gates, "langchain_core" for instance."""

    def attach(self, rm: ResourceManager, x: Any, **identity: Any) -> Any:
        """The gated equivalent of `x`, or NotImplemented if it is not for this adapter. Raises
        `AttachError` when it knows that `x` can't be gated, with the line to write instead."""
        ...


_lock = threading.Lock()
_loaded: dict[tuple[str, str], Adapter] = {}
_failed: dict[str, str] = {}


def names() -> tuple[str, ...]:
    """The adapters installed, without loading them."""
    return tuple(sorted({point.name for point in _points()}))


def failures() -> dict[str, str]:
    """Why adapters could not be loaded or failed so far, by name."""
    return dict(_failed)


def adapter(name: str) -> Adapter:
    """The adapter of that name. Raises `LookupError` if it is not installed or can't be loaded."""
    for point in _points():
        if point.name == name:
            found = _load(point)
            if found is None:
                raise LookupError(f"adapter {name!r} could not be loaded: {_failed[name]}")
            return found
    raise LookupError(f"adapter {name!r} is not installed; installed: {', '.join(names()) or 'none'}")


def attach(rm: ResourceManager, x: Any, **identity: Any) -> Any:
    """The gated equivalent of `x`, by the adapter that knows its class or one of its bases.

    Lists and tuples are gated part by part. Raises `AttachError` when no adapter knows `x`, or the one that
    does says that it can't be gated after the fact."""
    if type(x) in (list, tuple):
        return type(x)(attach(rm, part, **identity) for part in x)
    packages = [cls.__module__.partition(".")[0] for cls in type(x).__mro__]
    for found in _candidates(packages):
        try:
            gated = found.attach(rm, x, **identity)
        except AgentRMError:
            raise
        except Exception as error:  # noqa: BLE001 - told, and the next adapter may know it
            _report(found.name, error)
            continue
        if gated is not NotImplemented:
            return gated
    installed = ", ".join(names()) or "none"
    why = f"no adapter knows it (adapters: {installed}"
    if _failed:
        why += "; not working: " + ", ".join(f"{name} ({reason})" for name, reason in sorted(_failed.items()))
    raise AttachError(x, why + ")", "with rm.lease(agent=..., tokens=...) as lease:  # round the call itself")


def _candidates(packages: list[str]) -> Iterator[Adapter]:
    """Adapters for the packages: those named like one of them first, so that the others need not be
    loaded."""

    def distance(point: EntryPoint) -> tuple[bool, str]:
        return not any(package.startswith(point.name) for package in packages), point.name

    for point in sorted(_points(), key=distance):
        found = _load(point)
        if found is not None and not set(found.packages).isdisjoint(packages):
            yield found


def _points() -> list[EntryPoint]:
    disabled = {name.strip() for name in os.environ.get(DISABLE, "").split(",")}
    return [point for point in _installed(tuple(sys.path)) if point.name not in disabled]


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Reading the installed packages takes some 10 ms, so it is done once for each `sys.path`."""
    return tuple(entry_points(group=GROUP))


def _load(point: EntryPoint) -> Adapter | None:
    key = (point.name, point.value)
    with _lock:
        if key in _loaded:
            return _loaded[key]
    try:
        found = point.load()
        if not isinstance(found, Adapter):
            raise TypeError(f"{point.value} is no adapter: it needs name, packages and attach")
    except Exception as error:  # noqa: BLE001 - told; one broken plugin never breaks the others
        _report(point.name, error)
        return None
    with _lock:
        return _loaded.setdefault(key, found)


def _report(name: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    if _failed.get(name) != reason:
        _failed[name] = reason
        warnings.warn(f"the adapter {name!r} does not work: {reason}", AdapterWarning, stacklevel=4)
