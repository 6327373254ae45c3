"""Embeddings by tenant and collection in a SQLite file, with exact search: the protocol `VectorStore`.

A search reads the collection into one matrix of unit vectors, which stays cached until the collection
changes. Vectors are sealed if a `Sealer` is given, since a text can be guessed from its embedding.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from agentrm.storage.protocols import Match, Vector
from agentrm.storage.sqlite_file import SqliteFile

__all__ = ["SqliteVectors"]


class SqliteVectors(SqliteFile):
    """`VectorStore` on a SQLite file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._matrices: dict[tuple[str, str], tuple[int, list[str], list[str], Any]] = {}
        super().__init__(*args, **options)

    def add(self, tenant: str, collection: str, vectors: Sequence[Vector]) -> None:
        if not vectors:
            return
        width = len(vectors[0].values)
        with self.transaction() as db:
            row = db.execute(
                "SELECT width FROM collections WHERE tenant=? AND collection=?", (tenant, collection)
            ).fetchone()
            width = row[0] if row and row[0] else width
            size = items = 0
            for vector in vectors:
                if len(vector.values) != width:
                    raise ValueError(
                        f"vector {vector.id!r} has {len(vector.values)} numbers, "
                        f"those of collection {collection!r} have {width}"
                    )
                old = db.execute(
                    "SELECT LENGTH(value)+LENGTH(CAST(payload AS BLOB)) FROM vectors "
                    "WHERE tenant=? AND collection=? AND id=?",
                    (tenant, collection, vector.id),
                ).fetchone()
                stored = self._seal(array("f", vector.values).tobytes(), tenant, collection, vector.id)
                size += len(stored) + len(vector.payload.encode()) - (old[0] if old else 0)
                items += 0 if old else 1
                db.execute(
                    "INSERT OR REPLACE INTO vectors VALUES (?,?,?,?,?,?)",
                    (tenant, collection, vector.id, int(self._sealer is not None), vector.payload, stored),
                )
            self._charge(db, tenant, size, items)
            db.execute(
                "INSERT INTO collections VALUES (?,?,?,1) ON CONFLICT DO UPDATE SET changes=changes+1, width=?",
                (tenant, collection, width, width),
            )

    def _matrix(self, tenant: str, collection: str) -> tuple[int, list[str], list[str], Any] | None:
        import numpy

        with self.reading() as db:
            row = db.execute(
                "SELECT changes FROM collections WHERE tenant=? AND collection=?", (tenant, collection)
            ).fetchone()
            if row is None:
                return None
            cached = self._matrices.get((tenant, collection))
            if cached is not None and cached[0] == row[0]:
                return cached
            rows = db.execute(
                "SELECT id, sealed, payload, value FROM vectors WHERE tenant=? AND collection=? ORDER BY id",
                (tenant, collection),
            ).fetchall()
        values = b"".join(self._open(r[1], r[3], tenant, collection, r[0]) for r in rows)
        matrix: Any = numpy.frombuffer(values, dtype=numpy.float32).reshape(len(rows), -1 if rows else 0)
        norms = numpy.linalg.norm(matrix, axis=1, keepdims=True)
        matrix = matrix / numpy.where(norms == 0, 1, norms)
        made = (row[0], [r[0] for r in rows], [r[2] for r in rows], matrix)
        self._matrices[(tenant, collection)] = made
        return made

    def nearest(self, tenant: str, collection: str, query: Sequence[float], k: int = 10) -> list[Match]:
        import numpy

        held = self._matrix(tenant, collection)
        if held is None or not held[1] or k < 1:
            return []
        _, ids, payloads, matrix = held
        wanted = numpy.asarray(query, dtype=numpy.float32)
        if wanted.shape != (matrix.shape[1],):
            raise ValueError(
                f"the query has {wanted.size} numbers, those of collection {collection!r} have {matrix.shape[1]}"
            )
        scores = matrix @ (wanted / (float(numpy.linalg.norm(wanted)) or 1.0))
        order = numpy.argsort(-scores, kind="stable")[:k]  # rows are sorted by id, so ties are too
        return [Match(ids[i], float(scores[i]), payloads[i]) for i in order.tolist()]

    def remove(self, tenant: str, collection: str, ids: Sequence[str] | None = None) -> int:
        measure = "SELECT COUNT(*), TOTAL(LENGTH(value)+LENGTH(CAST(payload AS BLOB))) FROM vectors WHERE "
        whole = "tenant=? AND collection=?"
        with self.transaction() as db:
            size = removed = 0
            picked: list[tuple[str, ...]] = [(tenant, collection)]
            where = whole
            if ids is not None:
                picked, where = [(tenant, collection, one) for one in dict.fromkeys(ids)], whole + " AND id=?"
            for values in picked:
                row = db.execute(measure + where, values).fetchone()
                db.execute(f"DELETE FROM vectors WHERE {where}", values)
                removed, size = removed + row[0], size + int(row[1])
            self._charge(db, tenant, -size, -removed)
            # The row stays with its counter, so that no cached matrix of the old content can pass for the new
            # one.
            forget = ", width=0" if ids is None else ""
            change = f"UPDATE collections SET changes=changes+1{forget} WHERE {whole}"
            db.execute(change, (tenant, collection))
        return removed
