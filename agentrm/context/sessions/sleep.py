"""From a session to its hibernation file, and whether a file and a session here are the same history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrm.context.sessions.errors import SessionForked
from agentrm.context.sessions.hibernation import Hibernated, records_digest, write_hibernated
from agentrm.context.sessions.records import decode, encode
from agentrm.context.sessions.state import blob_prefix
from agentrm.storage import BlobStore, Disk, Replay, Sealer

if TYPE_CHECKING:
    from agentrm.context.sessions.session import Session

__all__ = ["refuse_fork", "renamed", "write_session"]


def write_session(
    session: Session,
    replay: Replay,
    path: Path,
    *,
    embedded: bool,
    now: float,
    blobs: BlobStore,
    disk: Disk,
    sealer: Sealer | None,
) -> None:
    """Writes the file of a session whose journal holds `replay`."""
    from agentrm import __version__

    records = tuple(record.payload for record in replay.records)
    prefix = blob_prefix(session.id)
    held = Hibernated(
        session.tenant,
        session.id,
        session.status,
        now,
        len(records),
        records_digest(records),
        records if embedded else (),
        {b.key.removeprefix(prefix): b.value for b in blobs.scan(session.tenant, prefix)},
        embedded,
    )
    write_hibernated(path, held, disk=disk, sealer=sealer, package=__version__)


def refuse_fork(name: str, path: Path, here: Replay, file: Hibernated) -> None:
    """Raises SessionForked unless one of the two histories begins with the other."""
    ours = [record.payload for record in here.records]
    if not file.embedded:
        if len(ours) < file.count or records_digest(ours[: file.count]) != file.digest:
            raise SessionForked(name, str(path), min(len(ours), file.count) + 1)
        return
    for number, (mine, theirs) in enumerate(zip(ours, file.records, strict=False), 1):
        if mine != theirs:
            raise SessionForked(name, str(path), number)


def renamed(file: Hibernated, tenant: str, session: str) -> Hibernated:
    """The same history under another name."""
    fields, _ = decode(file.records[0])
    begin = encode("begin", fields["at"], schema=fields["schema"], tenant=tenant, session=session)
    records = (begin, *file.records[1:])
    return Hibernated(
        tenant,
        session,
        file.status,
        file.hibernated,
        len(records),
        records_digest(records),
        records,
        file.blobs,
    )
