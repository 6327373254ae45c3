"""Blobs and vectors by tenant: versions, isolation, quotas, typed errors, on every built-in store."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.errors import ConfigError, ForkedError
from agentrm.storage import (
    DamagedData,
    Quota,
    QuotaExceeded,
    SchemaTooNew,
    SqliteStore,
    StorageError,
    StorageFull,
    Store,
    StoreBusy,
    Usage,
    Vector,
    VersionConflict,
    open_store,
)


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db")


def test_the_newest_version_is_what_get_returns(store: Store) -> None:
    assert store.put("a", "k", b"1") == 1
    assert store.put("a", "k", b"2") == 2
    blob = store.get("a", "k")
    assert blob is not None and (blob.value, blob.version) == (b"2", 2)
    assert "b'2'" not in repr(blob)


def test_a_write_on_an_old_version_is_refused(store: Store) -> None:
    store.put("a", "k", b"1", expect=0)
    with pytest.raises(VersionConflict):
        store.put("a", "k", b"2", expect=0)
    store.put("a", "k", b"2", expect=1)


def test_old_versions_are_kept_as_asked() -> None:
    store = SqliteStore(None, keep=2)
    for value in (b"1", b"2", b"3"):
        store.put("a", "k", value)
    assert store.versions("a", "k") == [2, 3]
    old = store.get("a", "k", version=2)
    assert old is not None and old.value == b"2"
    assert store.get("a", "k", version=1) is None
    assert store.usage("a") == Usage(bytes=4, items=2)


def test_tenants_see_nothing_of_each_other(store: Store) -> None:
    store.put("a", "k", b"a's")
    store.add("a", "c", [Vector("v", [1.0, 0.0])])
    assert store.get("b", "k") is None
    assert list(store.scan("b")) == []
    assert store.nearest("b", "c", [1.0, 0.0]) == []
    assert store.delete_prefix("b", "") == 0
    assert store.remove("b", "c") == 0
    assert store.tenants() == ["a"]


def test_scan_goes_by_prefix_in_both_directions(store: Store) -> None:
    store.put_many("a", {f"x/{n}": b"%d" % n for n in range(5)} | {"y/0": b"y"})
    assert [b.key for b in store.scan("a", "x/", after="x/1")] == ["x/2", "x/3", "x/4"]
    assert [b.key for b in store.scan("a", "x/", before="x/3", reverse=True, limit=2)] == ["x/2", "x/1"]
    assert store.delete_prefix("a", "x/") == 5
    assert [b.key for b in store.scan("a")] == ["y/0"]


def test_many_are_stored_all_or_none() -> None:
    store = SqliteStore(None, quotas={"*": Quota(items=3)})
    with pytest.raises(QuotaExceeded, match="3 items"):
        store.put_many("a", {str(n): b"" for n in range(4)})
    assert store.usage("a") == Usage(0, 0)
    store.put_many("a", {str(n): b"" for n in range(3)})


def test_a_quota_binds_its_tenant_only() -> None:
    store = SqliteStore(None, quotas={"small": Quota(bytes=10)})
    with pytest.raises(QuotaExceeded, match="'small' holds 0 of 10 bytes"):
        store.put("small", "k", b"0123456789")
    store.put("other", "k", b"0123456789")
    store.put("small", "k", b"012345678")
    store.put("small", "k", b"876543210")  # replacing frees what it replaces
    store.delete("small", ["k"])
    assert store.usage("small") == Usage(0, 0)


def test_vectors_count_for_the_quota() -> None:
    store = SqliteStore(None, quotas={"a": Quota(items=2)})
    store.add("a", "c", [Vector("1", [1.0]), Vector("2", [1.0])])
    with pytest.raises(QuotaExceeded):
        store.add("a", "c", [Vector("3", [1.0])])
    store.remove("a", "c", ["1"])
    store.add("a", "c", [Vector("3", [1.0])])


def test_nearest_is_exact_and_by_cosine(store: Store) -> None:
    store.add("a", "c", [Vector("x", [3.0, 0.0], "px"), Vector("y", [0.0, 1.0]), Vector("xy", [1.0, 1.0])])
    found = store.nearest("a", "c", [1.0, 0.1], k=2)
    assert [m.id for m in found] == ["x", "xy"]
    assert found[0].payload == "px" and found[0].score == pytest.approx(0.995, abs=1e-3)


def test_a_changed_collection_is_searched_as_it_is_now(store: Store) -> None:
    store.add("a", "c", [Vector("x", [1.0, 0.0])])
    store.nearest("a", "c", [1.0, 0.0])
    store.add("a", "c", [Vector("z", [1.0, 0.0]), Vector("x", [0.0, 1.0])])
    assert [m.id for m in store.nearest("a", "c", [1.0, 0.0], k=1)] == ["z"]
    store.remove("a", "c", ["z"])
    assert [m.id for m in store.nearest("a", "c", [1.0, 0.0])] == ["x"]
    store.remove("a", "c")
    store.add("a", "c", [Vector("w", [1.0, 0.0, 0.0])])
    assert [m.id for m in store.nearest("a", "c", [1.0, 0.0, 0.0])] == ["w"]


def test_a_vector_of_another_length_is_refused(store: Store) -> None:
    store.add("a", "c", [Vector("x", [1.0, 0.0])])
    with pytest.raises(ValueError, match="has 3 numbers"):
        store.add("a", "c", [Vector("y", [1.0, 0.0, 0.0])])
    with pytest.raises(ValueError, match="3 numbers"):
        store.nearest("a", "c", [1.0, 0.0, 0.0])


def test_a_database_of_a_later_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="schema 99"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(DamagedData):
        SqliteStore(tmp_path / "s.db")


def test_a_full_database_raises_and_goes_on_once_there_is_space(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.put("a", "first", b"1")
    with store.reading() as db:
        db.execute("PRAGMA max_page_count=12")
    with pytest.raises(StorageFull):
        store.put("a", "big", b"x" * 200_000)
    assert store.usage("a").items == 1
    with store.reading() as db:
        db.execute("PRAGMA max_page_count=100000")
    store.put("a", "big", b"x" * 200_000)


def test_a_database_held_by_another_process_is_busy_not_broken(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db", busy_s=0.01)
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        store.put("a", "k", b"1")
    other.execute("ROLLBACK")
    store.put("a", "k", b"1")


def test_two_processes_share_a_database(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    script = (
        "import sys; from agentrm.storage import SqliteStore\n"
        "s = SqliteStore(sys.argv[1])\n"
        "for n in range(50): s.put('a', f'{sys.argv[2]}/{n}', b'x')"
    )
    started = [subprocess.Popen([sys.executable, "-c", script, store.path, name]) for name in "pq"]
    assert [p.wait() for p in started] == [0, 0]
    assert store.usage("a").items == 100


def test_a_store_does_not_cross_a_fork(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")

    def child() -> None:
        try:
            store.put("a", "k", b"1")
        except ForkedError:
            raise SystemExit(7) from None

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 7


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.get("a", "k")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="memory, sqlite"):
        open_store("nowhere://x")


def test_a_registered_store_is_found_by_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Point:
        name = "redis"

        def load(self) -> object:
            return lambda url, **options: made.append((url, options)) or "the store"

    monkeypatch.setattr("agentrm.extensions.entry_points", lambda group: [Point()])
    assert open_store("redis://host/1", keep=3) == "the store"
    assert made == [("redis://host/1", {"keep": 3})]
    with pytest.raises(ConfigError, match="agentrm.stores: redis"):
        open_store("other://x")


def test_importing_the_room_loads_no_numpy_and_no_cryptography() -> None:
    script = "import sys, agentrm.storage; print({'numpy', 'cryptography', 'yaml'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"
