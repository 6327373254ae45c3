"""A plugin's names, each loaded when it is first used, so that importing a plugin needs no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from agentrm.errors import AgentRMError

__all__ = ["FrameworkMissing", "lazy"]


class FrameworkMissing(AgentRMError, ModuleNotFoundError):
    """A plugin was used whose framework is not installed. `name`: the module that is missing."""

    def __init__(self, plugin: str, missing: str, extra: str) -> None:
        text = f"{plugin} needs {missing}, which is not installed: pip install 'agentrm[{extra}]'"
        super().__init__(text, name=missing)
        self._given = plugin, missing, extra

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._given


def lazy(plugin: str, homes: Mapping[str, str], extra: str) -> Callable[[str], Any]:
    """The `__getattr__` of the package `plugin`: `homes` names the submodule of each public name, `extra` the extra of
    the distribution that brings the framework. Using a name raises `FrameworkMissing` where that is not installed."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {plugin!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{plugin}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            if isinstance(error, FrameworkMissing) or (error.name or "agentrm").startswith("agentrm"):
                raise  # said already, or a fault of ours
            raise FrameworkMissing(plugin, (error.name or "").partition(".")[0], extra) from error

    return get
