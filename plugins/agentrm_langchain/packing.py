"""Several byte strings as one, so that a value of a blob store can have fields."""

from __future__ import annotations

import struct

__all__ = ["pack", "unpack"]

_LENGTH = struct.Struct(">I")


def pack(*parts: bytes) -> bytes:
    """Each part with its length before it. Parts are shorter than 4 GiB."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(data: bytes) -> tuple[bytes, ...]:
    """The parts of `pack`. Raises ValueError if the data was not made by it."""
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("a packed value ends inside a length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            raise ValueError("a packed value ends inside a part")
        parts.append(data[at : at + size])
        at += size
    return tuple(parts)
