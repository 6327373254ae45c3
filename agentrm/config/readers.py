"""How one value of the configuration is read: each reader gives a typed value or a `ConfigError` that says
what is allowed.

Nothing is guessed: a bool is not a number, a number in quotes is text, NaN is refused everywhere, and
infinity is taken only where a reader says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from agentrm.errors import ConfigError

T = TypeVar("T")

LARGEST = 10**15
"""The largest amount, tokens or bytes: far above any real limit, and safe in the kernel's 64-bit
arithmetic."""

LONGEST = 10**9
"""The longest time, in seconds (31 years): it fits the kernel's clock, in nanoseconds, nine times over."""

SHORTEST = 0.001
"""The shortest time, in seconds: well above the kernel's microsecond, below which a limit would be none."""


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Reads one value. `allowed` says in words what it takes; `read(value, key)` gives it or raises
    `ConfigError`."""

    allowed: str
    read: Callable[[object, str], T]


def whole(least: int = 1, most: int = LARGEST) -> Reader[int]:
    """A whole number from `least` to `most`."""
    allowed = f"a whole number of at least {least}" + (f" and at most {most}" if most != LARGEST else "")

    def read(value: object, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(key, value, allowed + _unquoted(value))
        return value

    return Reader(allowed, read)


def number(
    most: float = LONGEST, *, least: float | None = None, infinite: bool = False, zero: bool = False
) -> Reader[float]:
    """A number above zero, or of at least `least`, and at most `most`; with `infinite` also infinity, with `zero` also
    zero."""
    allowed = "a number above 0" if least is None else f"a number of at least {least:g}"
    if zero:
        allowed = "a number from 0" if least is None else f"0, or {allowed}"
    if most != LONGEST:
        allowed += f" and at most {most:g}"
    if infinite:
        allowed += ", or .inf"

    def read(value: object, key: str) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if infinite and value == math.inf:
                return math.inf
            if (0 < value <= most and (least is None or value >= least)) or (zero and value == 0):
                return float(value)
        raise ConfigError(key, value, allowed + _unquoted(value))

    return Reader(allowed, read)


def seconds(*, infinite: bool = False, zero: bool = False) -> Reader[float]:
    """A time in seconds."""
    return number(least=SHORTEST, infinite=infinite, zero=zero)


def text(example: str = "", accept: Callable[[str], bool] | None = None) -> Reader[str]:
    """Text that is not blank, without blanks at its ends, that `accept` takes."""
    allowed = "text that is not empty" if not example else example

    def read(value: object, key: str) -> str:
        if not isinstance(value, str) or not value.strip() or value != value.strip():
            raise ConfigError(key, value, allowed)
        if accept is not None and not accept(value):
            raise ConfigError(key, value, allowed)
        return value

    return Reader(allowed, read)


def choice(*names: str) -> Reader[str]:
    """One of `names`."""
    allowed = " or ".join(names)

    def read(value: object, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise ConfigError(key, value, allowed + did_you_mean(value, names))
        return value

    return Reader(allowed, read)


def flag() -> Reader[bool]:
    """True or false; nothing else is taken for one of them."""
    allowed = "true or false"

    def read(value: object, key: str) -> bool:
        if not isinstance(value, bool):
            raise ConfigError(key, value, allowed)
        return value

    return Reader(allowed, read)


def either(word: str, other: Reader[T]) -> Reader[str | T]:
    """The word `word`, or what `other` takes."""
    allowed = f"{word}, or {other.allowed}"

    def read(value: object, key: str) -> str | T:
        if isinstance(value, str) and value == word:
            return word
        try:
            return other.read(value, key)
        except ConfigError:
            raise ConfigError(key, value, allowed + did_you_mean(value, (word,))) from None

    return Reader(allowed, read)


def listed(item: Reader[T], length: int | None = None) -> Reader[tuple[T, ...]]:
    """A list of what `item` takes, of `length` entries if that is given."""
    allowed = (
        f"a list, each entry {item.allowed}" if length is None else f"a list of {length}, each {item.allowed}"
    )

    def read(value: object, key: str) -> tuple[T, ...]:
        if not isinstance(value, (list, tuple)) or (length is not None and len(value) != length):
            raise ConfigError(key, value, allowed)
        return tuple(item.read(entry, f"{key}[{position}]") for position, entry in enumerate(value))

    return Reader(allowed, read)


def named(entry: Reader[T], name: Reader[str] | None = None) -> Reader[Mapping[str, T]]:
    """A mapping from names to what `entry` takes. `name` says which names are allowed (default: any that is
    not blank)."""
    names = name or text("a name: text that is not empty, without blanks at its ends")
    allowed = f"a mapping from names to {entry.allowed}"

    def read(value: object, key: str) -> Mapping[str, T]:
        if not isinstance(value, Mapping):
            raise ConfigError(key, value, allowed)
        for given in value:
            names.read(given, key)
        return MappingProxyType(
            {given: entry.read(inner, f"{key}.{given}") for given, inner in value.items()}
        )

    return Reader(allowed, read)


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """`; did you mean "x"?` for the one of `names` that is nearest to `given`, or nothing."""
    from difflib import get_close_matches  # only once something is wrong

    near = get_close_matches(given, list(names), n=1) if isinstance(given, str) else []
    return f"; did you mean {near[0]}?" if near else ""


def _unquoted(value: object) -> str:
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return (
        ' (this is text: leave out the quotes, and write 1.0e+6 or 1000000, since YAML reads "1e6" as text)'
    )
