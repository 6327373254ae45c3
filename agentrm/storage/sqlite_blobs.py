"""Versioned blobs by tenant in a SQLite file: the protocol `BlobStore`.

With `fsync="always"` an acknowledged write survives a power cut; with "batch" (default) and "never" it
survives a killed process, and a power cut may take the last moments but never damages the file (SQLite,
PRAGMA synchronous). Values are sealed if a `Sealer` is given; keys, sizes and times are not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from agentrm.storage.errors import VersionConflict
from agentrm.storage.protocols import Blob
from agentrm.storage.sqlite_file import LAST, SqliteFile

__all__ = ["SqliteBlobs"]

_COLUMNS = "key, version, sealed, written, value"
_SIZE = "LENGTH(value)+LENGTH(CAST(key AS BLOB))"


class SqliteBlobs(SqliteFile):
    """`BlobStore` on a SQLite file."""

    def _put(self, db: sqlite3.Connection, tenant: str, key: str, value: bytes, expect: int | None) -> int:
        row = db.execute("SELECT version FROM blobs WHERE tenant=? AND key=? AND newest", (tenant, key)).fetchone()
        newest = row[0] if row else 0
        if expect is not None and expect != newest:
            raise VersionConflict(key, expect, newest)
        version: int = newest + 1
        stored = self._seal(value, tenant, key, str(version))
        size, items = len(stored) + len(key.encode()), 1
        if newest:
            db.execute("UPDATE blobs SET newest=0 WHERE tenant=? AND key=? AND newest", (tenant, key))
            if self._keep is not None:
                where = "tenant=? AND key=? AND version<=?"
                old = (tenant, key, version - self._keep)
                freed = db.execute(f"SELECT COUNT(*), TOTAL({_SIZE}) FROM blobs WHERE {where}", old).fetchone()
                db.execute(f"DELETE FROM blobs WHERE {where}", old)
                size, items = size - int(freed[1]), items - freed[0]
        self._charge(db, tenant, size, items)
        db.execute(
            "INSERT INTO blobs VALUES (?,?,?,1,?,?,?)",
            (tenant, key, version, int(self._sealer is not None), self._wall(), stored),
        )
        return version

    def put(self, tenant: str, key: str, value: bytes, *, expect: int | None = None) -> int:
        with self.transaction() as db:
            return self._put(db, tenant, key, value, expect)

    def put_many(self, tenant: str, items: Mapping[str, bytes]) -> None:
        with self.transaction() as db:
            for key, value in items.items():
                self._put(db, tenant, key, value, None)

    def _blob(self, tenant: str, row: tuple[str, int, int, float, bytes]) -> Blob:
        key, version, sealed, written, value = row
        return Blob(key, version, self._open(sealed, value, tenant, key, str(version)), written)

    def get(self, tenant: str, key: str, *, version: int | None = None) -> Blob | None:
        where, more = ("newest", ()) if version is None else ("version=?", (version,))
        with self.reading() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM blobs WHERE tenant=? AND key=? AND {where}",
                (tenant, key, *more),
            ).fetchone()
        return self._blob(tenant, row) if row else None

    def get_many(self, tenant: str, keys: Sequence[str]) -> dict[str, Blob]:
        found: dict[str, Blob] = {}
        with self.reading() as db:
            for start in range(0, len(keys), 500):
                part = keys[start : start + 500]
                rows = db.execute(
                    f"SELECT {_COLUMNS} FROM blobs WHERE tenant=? AND newest AND key IN ({','.join('?' * len(part))})",
                    (tenant, *part),
                ).fetchall()
                found.update((row[0], self._blob(tenant, row)) for row in rows)
        return found

    def scan(
        self,
        tenant: str,
        prefix: str = "",
        *,
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Blob]:
        where, values = "tenant=? AND newest AND key>=? AND key<?", [tenant, prefix, prefix + LAST]
        if after is not None:
            where, values = where + " AND key>?", [*values, after]
        if before is not None:
            where, values = where + " AND key<?", [*values, before]
        with self.reading() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM blobs WHERE {where} ORDER BY key {'DESC' if reverse else 'ASC'} LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
        return (self._blob(tenant, row) for row in rows)

    def versions(self, tenant: str, key: str) -> list[int]:
        with self.reading() as db:
            rows = db.execute(
                "SELECT version FROM blobs WHERE tenant=? AND key=? ORDER BY version", (tenant, key)
            ).fetchall()
        return [row[0] for row in rows]

    def _delete(self, db: sqlite3.Connection, tenant: str, where: str, values: tuple[str, ...]) -> int:
        row = db.execute(
            f"SELECT COUNT(DISTINCT key), COUNT(*), TOTAL({_SIZE}) FROM blobs WHERE tenant=? AND {where}",
            (tenant, *values),
        ).fetchone()
        if row[1]:
            db.execute(f"DELETE FROM blobs WHERE tenant=? AND {where}", (tenant, *values))
            self._charge(db, tenant, -int(row[2]), -row[1])
        return int(row[0])

    def delete(self, tenant: str, keys: Sequence[str]) -> int:
        with self.transaction() as db:
            return sum(self._delete(db, tenant, "key=?", (key,)) for key in dict.fromkeys(keys))

    def delete_prefix(self, tenant: str, prefix: str) -> int:
        with self.transaction() as db:
            return self._delete(db, tenant, "key>=? AND key<?", (prefix, prefix + LAST))
