"""What a section of the configuration is: a frozen dataclass whose fields carry their reader and their
text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, TypeVar

from agentrm.config.readers import Reader, did_you_mean
from agentrm.errors import ConfigError, shown

S = TypeVar("S", bound="Section")

_READER, _ABOUT = "reader", "about"


class Setting(NamedTuple):
    """One line of a configuration: the dotted key, its value, and whether that is the default."""

    key: str
    value: object
    is_default: bool


class Section:
    """Base of the sections: reading from a plain mapping, and walking through the settings."""

    __slots__ = ()

    def check(self, key: str) -> None:
        """Raise `ConfigError` if values that are fine one by one can't stand together. `key` is the section's
        own."""


def key(reader: Reader[Any], default: Any, about: str) -> Any:
    """A key of a section. `about` gives meaning and unit in a line or two; the range is the reader's.

    A default that is a mapping or a section is given as a function that makes it.
    """
    metadata = {_READER: reader, _ABOUT: about}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[S]) -> Reader[S]:
    """Reads a mapping into `kind`; null is a mapping without keys."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    allowed = "a mapping with any of the keys " + ", ".join(names)

    def read(value: object, path: str) -> S:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise ConfigError(path or "the configuration", value, allowed)
        for given in value:
            if given not in names:
                near = did_you_mean(given, names)
                raise ConfigError(_join(path, given), value[given], f"the keys {', '.join(names)}{near}")
        # Null means the default, as if the key were not there.
        read_values = {
            name: reader_of(kind, name).read(value[name], _join(path, name))
            for name in names
            if value.get(name) is not None
        }
        made = kind(**read_values)
        made.check(path)
        return made

    return Reader(allowed, read)


def reader_of(kind: type[Section], name: str) -> Reader[Any]:
    reader: Reader[Any] = _field(kind, name).metadata[_READER]
    return reader


def about(kind: type[Section], name: str) -> str:
    text: str = _field(kind, name).metadata[_ABOUT]
    return text


def default_of(one: Field[Any]) -> object:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def settings(made: Section, path: str = "") -> Iterator[Setting]:
    """All settings of a section and of those inside it, in the order of the documentation."""
    for one in fields(made):  # type: ignore[arg-type]
        value = getattr(made, one.name)
        yield from _walk(_join(path, one.name), value, value == default_of(one))


def _walk(path: str, value: object, is_default: bool) -> Iterator[Setting]:
    if isinstance(value, Section):
        yield from settings(value, path)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _walk(_join(path, name), inner, is_default)
    elif isinstance(value, tuple) and value and isinstance(value[0], Section):
        for position, inner in enumerate(value):
            yield from _walk(f"{path}[{position}]", inner, is_default)
    else:
        yield Setting(path, value, is_default)


def _join(path: str, name: object) -> str:
    name = name if isinstance(name, str) else shown(name)
    return f"{path}.{name}" if path else name


def _field(kind: type[Section], name: str) -> Field[Any]:
    found: dict[str, Field[Any]] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return found[name]
