"""Tier 1's index: which messages of a session hold these words? SQLite full-text search with BM25.

The index is derived from the journal: a damaged or missing one is made anew. With encryption its words are
replaced by keyed names (`Sealer.blind`), so that the file shows which messages share words, but not which
words.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrm.storage import Sealer, StorageError

__all__ = ["TextIndex", "terms"]

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_COMPOUND = re.compile(r"[\w./:@#-]*[\w]", re.UNICODE)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SCHEMA = 1


def terms(text: str) -> list[str]:
    """The words of a text, lower-cased: parts and wholes of identifiers, pairs of CJK characters."""
    text = text.lower()
    found = _WORD.findall(text)
    found += [whole for whole in _COMPOUND.findall(text) if not whole.isalnum()]
    for run in _WIDE.findall(text):
        found += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
    return found


class TextIndex:
    """One SQLite file for all sessions of a store; `path` None keeps it in memory."""

    def __init__(self, path: Path | None, sealer: Sealer | None = None) -> None:
        self._path, self._sealer = path, sealer
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            try:
                self._db = self._prepared()
            except sqlite3.DatabaseError:
                if self._path is None:
                    raise
                for name in (self._path, Path(f"{self._path}-wal"), Path(f"{self._path}-shm")):
                    name.unlink(missing_ok=True)  # derived data: the sessions fill it again
                self._db = self._prepared()
        return self._db

    def _prepared(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path or ":memory:", timeout=10, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")
        if db.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA:
            db.executescript(
                "BEGIN IMMEDIATE; DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS done;"
                "CREATE VIRTUAL TABLE words USING fts5(terms, sequence UNINDEXED, detail=none);"
                "CREATE TABLE done (number INTEGER PRIMARY KEY, tenant TEXT, session TEXT, sequence INTEGER,"
                " UNIQUE (tenant, session));"
                f"PRAGMA user_version={_SCHEMA}; COMMIT;"
            )
        return db

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connect()
            except sqlite3.Error as error:
                where = self._path or "in memory"
                raise StorageError(
                    f"the search index {where} failed ({error}). The sessions are not affected; "
                    "remove the index file and it is made anew."
                ) from error

    def _token(self, term: str) -> str:
        """A term as one token that the tokenizer of SQLite leaves alone."""
        if self._sealer is not None:
            return "k" + self._sealer.blind(term)
        return "w" + term.encode("utf-8", "surrogatepass").hex()

    def _number(self, db: sqlite3.Connection, tenant: str, session: str) -> tuple[int, int]:
        row = db.execute("SELECT number, sequence FROM done WHERE tenant=? AND session=?", (tenant, session)).fetchone()
        return (row[0], row[1]) if row else (0, 0)

    def indexed_to(self, tenant: str, session: str) -> int:
        """The sequence number up to which the session's records are in the index."""
        with self._using() as db:
            return self._number(db, tenant, session)[1]

    def add(self, tenant: str, session: str, texts: Iterable[tuple[int, str]], up_to: int) -> None:
        """Adds texts by their sequence numbers, and notes that the session is indexed up to `up_to`."""
        with self._using() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                number, done = self._number(db, tenant, session)
                db.execute(
                    "INSERT INTO done (tenant, session, sequence) VALUES (?,?,?) "
                    "ON CONFLICT (tenant, session) DO UPDATE SET sequence=?",
                    (tenant, session, up_to, up_to),
                )
                number = number or self._number(db, tenant, session)[0]
                db.executemany(
                    "INSERT INTO words (terms, sequence) VALUES (?,?)",
                    (
                        (" ".join([f"s{number}", *map(self._token, terms(text))]), sequence)
                        for sequence, text in texts
                        if sequence > done
                    ),
                )
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise

    def search(self, tenant: str, session: str, query: str, k: int) -> list[tuple[int, float]]:
        """Sequence numbers and scores of the best `k`, best first; empty if no word of the query occurs."""
        wanted = list(dict.fromkeys(map(self._token, terms(query))))
        with self._using() as db:
            number, _ = self._number(db, tenant, session)
            if not wanted or not number or k < 1:
                return []
            rows = db.execute(
                "SELECT sequence, bm25(words) FROM words WHERE words MATCH ? ORDER BY bm25(words), sequence LIMIT ?",
                (f"s{number} AND ({' OR '.join(wanted)})", k),
            ).fetchall()
        return [(row[0], -row[1]) for row in rows]

    def forget(self, tenant: str, session: str) -> None:
        """Removes a session, and what was begun under its name before (`session` and a line break)."""
        with self._using() as db:
            rows = db.execute(
                "SELECT number FROM done WHERE tenant=? AND (session=? OR substr(session, 1, ?)=?)",
                (tenant, session, len(session) + 1, f"{session}\n"),
            ).fetchall()
            for (number,) in rows:
                db.execute("DELETE FROM words WHERE words MATCH ?", (f"s{number}",))
                db.execute("DELETE FROM done WHERE number=?", (number,))

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
