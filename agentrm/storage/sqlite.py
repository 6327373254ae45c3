"""The default store: blobs and vectors of all tenants in one SQLite file."""

from __future__ import annotations

from agentrm.storage.sqlite_blobs import SqliteBlobs
from agentrm.storage.sqlite_vectors import SqliteVectors

__all__ = ["SqliteStore"]


class SqliteStore(SqliteBlobs, SqliteVectors):
    """`BlobStore` and `VectorStore` on one file, for several threads and processes (`SqliteFile` has the
    options).
    """
