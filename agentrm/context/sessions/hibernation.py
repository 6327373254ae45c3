"""The hibernation file: one session as one file, to be continued in another process or on another machine.

    agentrm-session 1        the schema number; it changes only if an older reader would misread the file
    CRC {"tenant": ...}      a JSON header: what it is, size and checksum of the body, the key id
    body                     frames, zlib-compressed and maybe sealed: blobs of the session, its records

The package version in the header is for people; only the schema number decides whether a file can be read.
The file is written beside its place, synced and renamed, so a crash leaves the old file or the new one.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrm.storage import DamagedData, Disk, SchemaTooNew, Sealer, WrongKey, write_atomically
from agentrm.storage.errors import write_error
from agentrm.storage.frames import frame, scan

__all__ = ["SCHEMA", "Hibernated", "read_header", "read_hibernated", "records_digest", "write_hibernated"]

SCHEMA = 1
_MAGIC = b"agentrm-session "
_LEVEL = 3  # of zlib: a third of the time of the default for a tenth more bytes


@dataclass(frozen=True, slots=True)
class Hibernated:
    """What a hibernation file holds. `records` are journal payloads; empty if the file only refers to the
    journal.
    """

    tenant: str
    session: str
    status: str
    hibernated: float  # seconds since 1970
    count: int  # how many records the session had
    digest: str  # of these records (`records_digest`)
    records: tuple[bytes, ...] = field(repr=False)
    blobs: Mapping[str, bytes] = field(repr=False)
    embedded: bool = True


def records_digest(records: Iterable[bytes]) -> str:
    """One hash over records in order; equal digests mean equal records."""
    total = hashlib.sha256()
    for record in records:
        total.update(b"%d:" % len(record))
        total.update(record)
    return total.hexdigest()


def _context(tenant: str, session: str) -> bytes:
    return f"hibernation\0{tenant}\0{session}".encode()


def write_hibernated(path: Path, held: Hibernated, *, disk: Disk, sealer: Sealer | None, package: str) -> None:
    """Writes the file atomically and durably. Raises WriteFailed, StorageFull; the old file, if any, is then
    there.
    """
    parts = [frame(0, b"b" + key.encode() + b"\0" + value) for key, value in held.blobs.items()]
    parts += [frame(number, b"r" + payload) for number, payload in enumerate(held.records, 1)]
    body = zlib.compress(b"".join(parts), _LEVEL)
    if sealer is not None:
        body = sealer.seal(body, _context(held.tenant, held.session))
    header = {
        "tenant": held.tenant,
        "session": held.session,
        "status": held.status,
        "hibernated": held.hibernated,
        "records": held.count,
        "digest": held.digest,
        "embedded": held.embedded,
        "package": package,
        "sealed": sealer.key_id if sealer is not None else None,
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    line = json.dumps(header).encode()
    data = b"%s%d\n%08x %s\n%s" % (_MAGIC, SCHEMA, zlib.crc32(line), line, body)
    try:
        disk.make_folder(path.parent)
    except OSError as error:
        raise write_error(str(path.parent), "making", error) from error
    write_atomically(path, data, disk=disk)


def read_header(path: Path) -> dict[str, Any]:
    """The header alone: what the file is, without reading or opening its body."""
    return _split(path, path.read_bytes())[0]


def _split(path: Path, data: bytes) -> tuple[dict[str, Any], bytes]:
    first, _, rest = data.partition(b"\n")
    if not first.startswith(_MAGIC) or not first[len(_MAGIC) :].isdigit():
        raise DamagedData(str(path), "it does not begin like a hibernation file")
    schema = int(first[len(_MAGIC) :])
    if schema > SCHEMA:
        raise SchemaTooNew(str(path), schema, SCHEMA)
    line, _, body = rest.partition(b"\n")
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise DamagedData(str(path), "its header can't be read")
    header: dict[str, Any] = json.loads(text)
    if len(body) != header["bytes"]:
        raise DamagedData(str(path), f"its body has {len(body)} of {header['bytes']} bytes")
    return header, body


def read_hibernated(path: Path, *, sealer: Sealer | None) -> Hibernated:
    """Reads and checks a whole file, which is never changed.

    Raises FileNotFoundError, SchemaTooNew, DamagedData, WrongKey.
    """
    header, body = _split(path, path.read_bytes())
    if hashlib.sha256(body).hexdigest() != header["sha256"]:
        raise DamagedData(str(path), "its checksum does not fit")
    if header["sealed"] is not None:
        if sealer is None:
            raise WrongKey(str(path), header["sealed"], ())
        body = sealer.unseal(body, _context(header["tenant"], header["session"]))
    try:
        frames, damage = scan(zlib.decompress(body), str(path))
    except zlib.error as error:
        raise DamagedData(str(path), str(error)) from error
    if damage:
        raise DamagedData(str(path), str(damage[0]))
    records: Sequence[bytes] = [item.payload[1:] for item in frames if item.payload[:1] == b"r"]
    if header["embedded"] and len(records) != header["records"]:
        raise DamagedData(str(path), f"it holds {len(records)} of {header['records']} records")
    blobs = dict(item.payload[1:].split(b"\0", 1) for item in frames if item.payload[:1] == b"b")
    return Hibernated(
        header["tenant"],
        header["session"],
        header["status"],
        header["hibernated"],
        header["records"],
        header["digest"],
        tuple(records),
        {key.decode(): value for key, value in blobs.items()},
        header["embedded"],
    )
