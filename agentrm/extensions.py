"""Extensions by name, through Python's entry points: loaded when asked for, and a broken one breaks no other."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from agentrm.errors import ConfigError

__all__ = ["load_extension"]


def load_extension(group: str, name: str, key: str) -> Any:
    """What the entry point `name` of `group` (such as `agentrm.stores`) stands for. `key` is the configuration's name
    of the choice, for errors.

    Raises ConfigError if there is none of that name, or the one there is can't be loaded; others are not looked at.
    """
    found = entry_points(group=group)
    chosen = next((one for one in found if one.name == name), None)
    if chosen is None:
        known = ", ".join(sorted({one.name for one in found})) or "none"
        raise ConfigError(key, name, f"the name of an entry point of {group}: {known}")
    try:
        return chosen.load()
    except Exception as error:  # whatever a plugin's import raises, the choice is what can't work
        raise ConfigError(key, name, f"a plugin that can be loaded ({chosen.value}: {error!r})") from error
