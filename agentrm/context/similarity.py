"""Which passages are near to which, by embedding?

A thin face of FAISS (inner product on unit vectors, exact), with numpy where FAISS is not installed: the
results are the same, large sets take longer. Vectors of texts are kept in a bounded memory by hash of the
text, so that a text is embedded once per process; a `VectorCache` with a path keeps them across processes.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.context.embed import Embedder

if TYPE_CHECKING:
    from agentrm.context.embed import Matrix

_CHUNK = 1024
_EXACT_ROWS = 2048  # above, searching every row for every row costs more than all else of a compaction


class Nearest:
    """An index over unit vectors. Thread-safe for searches once built. Exact; `approximate` allows an inverted file of
    FAISS for large sets (its k-means is seeded: equal vectors give equal results).
    """

    def __init__(self, vectors: Matrix, *, approximate: bool = False) -> None:
        self.vectors = vectors
        self._index: Any = None
        try:
            import faiss
        except ImportError:
            return
        width = vectors.shape[1] if len(vectors) else 1
        self._index = faiss.IndexFlatIP(width)
        if approximate and len(vectors) > _EXACT_ROWS:
            cells = int(len(vectors) ** 0.5)
            self._index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, cells, faiss.METRIC_INNER_PRODUCT)
            self._index.cp.niter = 4
            self._index.cp.max_points_per_centroid = 32
            self._index.cp.min_points_per_centroid = 1
            self._index.train(vectors)
            self._index.nprobe = 4
        if len(vectors):
            self._index.add(vectors)

    def search(self, queries: Matrix, k: int) -> tuple[Any, Any]:
        """Similarities (queries, k) and row numbers (queries, k), best first; k is cut to the size of the index.
        """
        import numpy as np

        k = min(k, len(self.vectors))
        if k == 0:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        if self._index is not None:
            found: tuple[Any, Any] = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
            return found
        sims, rows = [], []
        for start in range(0, len(queries), _CHUNK):
            scores = queries[start : start + _CHUNK] @ self.vectors.T
            best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            values = np.take_along_axis(scores, best, 1)
            order = np.argsort(-values, axis=1, kind="stable")
            sims.append(np.take_along_axis(values, order, 1))
            rows.append(np.take_along_axis(best, order, 1))
        return np.concatenate(sims), np.concatenate(rows)


class VectorCache:
    """Vectors by text, in memory and, with `path`, in one SQLite file. Thread-safe.

    A cache belongs to one embedder: its name is part of the key, so files can be shared between embedders.
    """

    def __init__(self, embedder: Embedder, path: str | Path | None = None, remember: int = 50_000) -> None:
        self.embedder = embedder
        self._remember = remember
        self._memory: dict[bytes, Matrix] = {}
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        if path is not None:
            self._file = sqlite3.connect(str(path), check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
            )

    def vectors(self, texts: Sequence[str]) -> Matrix:
        """One row per text; what is not known yet is embedded in one call."""
        import numpy as np

        keys = [self._key(t) for t in texts]
        with self._lock:
            if self._file is not None:
                self._load([k for k in dict.fromkeys(keys) if k not in self._memory])
            missing = {k: t for k, t in zip(keys, texts, strict=True) if k not in self._memory}
        if missing:
            rows = self.embedder.embed(list(missing.values()))
            with self._lock:
                if len(self._memory) + len(missing) > self._remember:
                    wanted = set(keys)
                    self._memory = {k: v for k, v in self._memory.items() if k in wanted}
                for key, row in zip(missing, rows, strict=True):
                    self._memory[key] = row
                if self._file is not None:
                    self._file.executemany(
                        "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
                        [(k, r.astype(np.float16).tobytes()) for k, r in zip(missing, rows, strict=True)],
                    )
                    self._file.commit()
        if not texts:
            return np.zeros((0, self.embedder.dimensions), dtype=np.float32)
        return np.stack([self._memory[k] for k in keys])

    def _key(self, text: str) -> bytes:
        name = self.embedder.name
        return hashlib.blake2b(f"{name}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _load(self, keys: list[bytes]) -> None:
        import numpy as np

        assert self._file is not None
        for start in range(0, len(keys), 500):
            some = keys[start : start + 500]
            marks = ",".join("?" * len(some))
            rows = self._file.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some)
            for key, blob in rows:
                self._memory[bytes(key)] = np.frombuffer(blob, dtype=np.float16).astype(np.float32)
