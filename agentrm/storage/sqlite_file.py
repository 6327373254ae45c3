"""One SQLite file (write-ahead log) as storage uses it: transactions, typed errors, quotas, sealing."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from agentrm.errors import ConfigError, ForkedError
from agentrm.storage.errors import (
    DamagedData,
    QuotaExceeded,
    SchemaTooNew,
    StorageError,
    StorageFull,
    StoreBusy,
    WrongKey,
)
from agentrm.storage.journal import Fsync
from agentrm.storage.protocols import Quota, Usage
from agentrm.storage.sealing import Sealer, key_id_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LAST", "SCHEMA", "SqliteFile"]

SCHEMA = 1
_BUSY_S = 10.0
_CREATE = """
CREATE TABLE IF NOT EXISTS blobs (
  tenant TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, newest INTEGER NOT NULL,
  sealed INTEGER NOT NULL, written REAL NOT NULL, value BLOB NOT NULL, PRIMARY KEY (tenant, key, version));
CREATE INDEX IF NOT EXISTS blobs_newest ON blobs (tenant, key) WHERE newest;
CREATE TABLE IF NOT EXISTS vectors (
  tenant TEXT NOT NULL, collection TEXT NOT NULL, id TEXT NOT NULL, sealed INTEGER NOT NULL,
  payload TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (tenant, collection, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS collections (
  tenant TEXT NOT NULL, collection TEXT NOT NULL, width INTEGER NOT NULL, changes INTEGER NOT NULL,
  PRIMARY KEY (tenant, collection)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
  tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL, items INTEGER NOT NULL) WITHOUT ROWID;
"""
LAST = chr(0x10FFFF)


class SqliteFile:
    """The base of the SQLite stores. Raises SchemaTooNew, DamagedData, StoreBusy, StorageFull at opening.

    `path` None keeps everything in memory. `quotas` maps tenants to limits, the entry "*" holds for all
    others. `keep` is how many versions of a blob are kept (None: all). Waits up to `busy_s` seconds for other
    processes.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        fsync: Fsync = "batch",
        quotas: Mapping[str, Quota] | None = None,
        keep: int | None = 1,
        sealer: Sealer | None = None,
        wall: Callable[[], float] = time.time,
        busy_s: float = _BUSY_S,
    ) -> None:
        if keep is not None and keep < 1:
            raise ConfigError("keep", keep, "1 or more versions, or None for all")
        self.path = Path(path) if path is not None else None
        self._name = str(self.path) if self.path is not None else "the store in memory"
        self._quotas, self._keep, self._sealer, self._wall = dict(quotas or {}), keep, sealer, wall
        self._busy_s = busy_s
        self._lock = threading.RLock()
        self._pid = os.getpid()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._typed():
            self._db: sqlite3.Connection | None = sqlite3.connect(
                self.path or ":memory:", timeout=busy_s, isolation_level=None, check_same_thread=False
            )
            self._prepare(fsync)

    def _prepare(self, fsync: Fsync) -> None:
        db = self._connection()
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found > SCHEMA:
            self.close()
            raise SchemaTooNew(self._name, found, SCHEMA)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if fsync == 'always' else 'NORMAL'}")
        if found < SCHEMA:
            db.executescript(f"BEGIN IMMEDIATE; {_CREATE} PRAGMA user_version={SCHEMA}; COMMIT;")
            if self.path is not None:
                os.chmod(self.path, 0o600)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} sealed={self._sealer is not None}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
            self._db = None

    def _connection(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            raise ForkedError(f"{self._name} was opened before a fork. Open it again in the child.")
        if self._db is None:
            raise StorageError(f"{self._name}: the store is closed. Open it again.")
        return self._db

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise StoreBusy(self._name, self._busy_s) from error
            if "full" in text:
                raise StorageFull(self._name, "writing", OSError(28, text)) from error
            raise StorageError(f"{self._name}: {text}. Nothing of this call was stored.") from error
        except sqlite3.DatabaseError as error:
            raise DamagedData(self._name, str(error)) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction on the file, for tables that a room of agentrm keeps beside the blobs."""
        with self._lock, self._typed():
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for reading, under the store's lock."""
        with self._lock, self._typed():
            yield self._connection()

    # -- sealing and quotas

    def _seal(self, value: bytes, *context: str) -> bytes:
        return value if self._sealer is None else self._sealer.seal(value, "\0".join(context).encode())

    def _open(self, sealed: int, value: bytes, *context: str) -> bytes:
        if not sealed:
            return value
        if self._sealer is None:
            raise WrongKey("/".join(context), key_id_of(value), ())
        return self._sealer.unseal(value, "\0".join(context).encode())

    def _charge(self, db: sqlite3.Connection, tenant: str, size: int, items: int) -> None:
        row = db.execute("SELECT bytes, items FROM usage WHERE tenant=?", (tenant,)).fetchone() or (0, 0)
        quota = self._quotas.get(tenant, self._quotas.get("*", Quota()))
        if size > 0 and quota.bytes is not None and row[0] + size > quota.bytes:
            raise QuotaExceeded(tenant, "bytes", quota.bytes, row[0], size)
        if items > 0 and quota.items is not None and row[1] + items > quota.items:
            raise QuotaExceeded(tenant, "items", quota.items, row[1], items)
        db.execute(
            "INSERT INTO usage VALUES (?,?,?) ON CONFLICT (tenant) DO UPDATE SET bytes=bytes+?, items=items+?",
            (tenant, size, items, size, items),
        )

    def usage(self, tenant: str) -> Usage:
        """What a tenant holds now."""
        with self.reading() as db:
            row = db.execute("SELECT bytes, items FROM usage WHERE tenant=?", (tenant,)).fetchone()
        return Usage(*row) if row else Usage(0, 0)

    def tenants(self) -> list[str]:
        """The tenants that hold anything."""
        with self.reading() as db:
            rows = db.execute("SELECT tenant FROM usage WHERE items>0 ORDER BY tenant").fetchall()
        return [row[0] for row in rows]
