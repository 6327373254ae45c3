"""How one record stands in a file: a text header with checksum, length and sequence number, the payload, a
newline.

    crc32    length   sequence     flag
    4f0c21aa 0000002d 00000000002a p {"t": ...}\\n

The checksum covers everything between itself and the newline. A record that lacks its newline counts as torn,
so a file that was cut at any byte yields all records before the cut and none after it. With JSON payloads the
file is a text file with one line per record. `flag` is `p` for plain and `s` for sealed (encrypted) payloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

__all__ = ["HEADER", "Damage", "Frame", "frame", "scan"]

HEADER = 33  # bytes before the payload
_CRC = 9  # the checksum and its space


class Frame(NamedTuple):  # made ten thousand times per restore, where a frozen dataclass takes three times as long
    """One intact record: its place in the buffer and its payload."""

    sequence: int
    offset: int  # of the header, bytes from the start of the buffer
    size: int  # bytes, header and newline included
    sealed: bool
    payload: bytes

    def __repr__(self) -> str:  # without the payload, which may be secret
        return f"<Frame {self.sequence} {len(self.payload)} bytes at {self.offset}>"


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no intact record. `at_tail` is the ordinary trace of a crash during a write."""

    file: str
    offset: int
    size: int
    at_tail: bool

    def __str__(self) -> str:
        kind = "a record cut off at the end" if self.at_tail else "a damaged stretch in the middle"
        return f"{self.file}: {kind}, {self.size} bytes at offset {self.offset}"


def frame(sequence: int, payload: bytes, *, sealed: bool = False) -> bytes:
    """The bytes of one record."""
    body = b"%08x %012x %c %s" % (len(payload), sequence, 115 if sealed else 112, payload)
    return b"%08x %s\n" % (crc32(body), body)


def _frame_at(buffer: bytes, at: int) -> Frame | None:
    head = buffer[at : at + HEADER]
    try:
        length = int(head[9:17], 16)
        end = at + HEADER + length
        if buffer[end] != 10 or b"%08x" % crc32(buffer[at + _CRC : end]) != head[:8]:
            return None
        return Frame(int(head[18:30], 16), at, end + 1 - at, head[31] == 115, buffer[at + HEADER : end])
    except (ValueError, IndexError):
        return None


def scan(buffer: bytes, file: str = "") -> tuple[list[Frame], list[Damage]]:
    """All intact records of `buffer` in order, and the stretches that hold none. Never raises."""
    frames: list[Frame] = []
    damage: list[Damage] = []
    at, bad = 0, -1
    while at < len(buffer):
        found = _frame_at(buffer, at)
        if found is not None:
            if bad >= 0:
                damage.append(Damage(file, bad, at - bad, at_tail=False))
                bad = -1
            frames.append(found)
            at += found.size
            continue
        if bad < 0:
            bad = at
        newline = buffer.find(b"\n", at)
        at = len(buffer) if newline < 0 else newline + 1
    if bad >= 0:
        damage.append(Damage(file, bad, len(buffer) - bad, at_tail=True))
    return frames, damage
