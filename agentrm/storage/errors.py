"""What can go wrong when bytes are stored, and the way on from each."""

from __future__ import annotations

import errno

from agentrm.errors import AgentRMError

__all__ = [
    "DamagedData",
    "QuotaExceeded",
    "SchemaTooNew",
    "StorageError",
    "StorageFull",
    "StoreBusy",
    "VersionConflict",
    "WriteFailed",
    "WrongKey",
    "write_error",
]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(AgentRMError):
    """Base of all errors of the stores. What was acknowledged before the error is still stored."""


class WriteFailed(StorageError):
    """The operating system refused a write, a sync or a rename.

    The record in question was not stored and what was acknowledged before is. The same call can be made
    again: it starts by repairing the file.
    """

    def __init__(self, path: str, doing: str, cause: OSError) -> None:
        self.path, self.errno = path, cause.errno
        super().__init__(
            f"{doing} {path} failed ({cause.strerror or cause}). This record was not stored, "
            "all earlier ones are. Remove the cause and make the same call again."
        )


class StorageFull(WriteFailed):
    """No space (or no operating system quota) is left. Free some and make the same call again."""


class QuotaExceeded(StorageError):
    """A tenant's own limit is reached. Nothing was stored. `unit` is "bytes" or "items"."""

    def __init__(self, tenant: str, unit: str, limit: int, used: int, asked: int) -> None:
        self.tenant, self.unit, self.limit, self.used, self.asked = tenant, unit, limit, used, asked
        super().__init__(
            f"tenant {tenant!r} holds {used} of {limit} {unit} and asked for {asked} more. "
            "Delete or export sessions of this tenant, or raise its quota."
        )


class WrongKey(StorageError):
    """Data is encrypted and the key given does not open it (or none was given). The data is untouched."""

    def __init__(self, where: str, key_id: str | None, known: tuple[str, ...]) -> None:
        self.where, self.key_id, self.known = where, key_id, known
        have = ", ".join(known) if known else "none"
        super().__init__(
            f"{where} is encrypted with the key {key_id!r}; keys given: {have}. "
            "Give the key of that id; if it was given, it is not the same key or the data was changed."
        )


class DamagedData(StorageError):
    """Stored bytes fail their checksum. `where` names them; the undamaged rest can still be read."""

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        super().__init__(f"{where} is damaged: {why}. It was left as it is; restore it from a copy.")


class VersionConflict(StorageError):
    """Somebody else stored a newer version since it was read. Read it again and repeat the change."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        self.key, self.expected, self.found = key, expected, found
        super().__init__(
            f"{key!r} is at version {found}, the write expected version {expected}. Read it again and repeat."
        )


class SchemaTooNew(StorageError):
    """A file was written by a later format than this package knows. The file is untouched."""

    def __init__(self, path: str, found: int, known: int) -> None:
        self.path, self.found, self.known = path, found, known
        super().__init__(
            f"{path} has schema {found}, this package reads schemas up to {known}. "
            "The file was not changed; upgrade agentrm to read it."
        )


class StoreBusy(StorageError):
    """Another process holds the database for longer than the time-out. Nothing was stored; call again."""

    def __init__(self, path: str, waited_s: float) -> None:
        self.path, self.waited_s = path, waited_s
        super().__init__(f"{path} was held by another process for {waited_s:g} s. Nothing was stored; call again.")


def write_error(path: str, doing: str, cause: OSError) -> WriteFailed:
    """The typed form of an operating system error: StorageFull if space is what is missing."""
    return (StorageFull if cause.errno in _FULL else WriteFailed)(path, doing, cause)
