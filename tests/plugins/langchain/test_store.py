"""LangGraph's long-term memory over our stores behaves like LangGraph's own, and stays after the process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from agentrm.errors import ConfigError
from agentrm.storage import SqliteStore
from agentrm_langchain.store import SessionItems


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(text.lower().count(letter)) + 0.01 for letter in "abcdefgh"] for text in texts]


INDEX: Any = {"dims": 8, "embed": embed, "fields": ["text"]}


def ours(index: Any = None) -> SessionItems:
    return SessionItems(SqliteStore(None), index=index)


def plain(items: Any) -> list[Any]:
    return [(i.namespace, i.key, i.value, None if i.score is None else round(i.score, 4)) for i in items]


def test_items_stay_after_the_process(tmp_path: Path) -> None:
    SessionItems(SqliteStore(tmp_path / "s.db")).put(("users", "a/b"), "k é", {"n": 1, "nested": {"x": [1, None]}})
    item = SessionItems(SqliteStore(tmp_path / "s.db")).get(("users", "a/b"), "k é")
    assert item is not None
    assert (item.namespace, item.key, item.value) == (
        ("users", "a/b"),
        "k é",
        {"n": 1, "nested": {"x": [1, None]}},
    )


def test_an_update_keeps_the_time_of_creation() -> None:
    store = ours()
    store.put(("a",), "k", {"n": 1})
    first = store.get(("a",), "k")
    store.put(("a",), "k", {"n": 2})
    second = store.get(("a",), "k")
    assert first is not None and second is not None
    assert second.created_at == first.created_at and second.updated_at >= first.updated_at
    assert second.value == {"n": 2}


def test_a_batch_reads_what_was_there_before_it() -> None:
    store = ours()
    results = store.batch([PutOp(("a",), "k", {"n": 1}), GetOp(("a",), "k"), SearchOp(("a",))])
    assert results == [None, None, []]


@pytest.mark.parametrize("indexed", [False, True])
def test_it_answers_like_langgraphs_own_store(rng: random.Random, indexed: bool) -> None:
    index = INDEX if indexed else None
    pair: list[BaseStore] = [InMemoryStore(index=index), ours(index)]
    namespaces = [("u",), ("u", "x"), ("u", "x", "y"), ("v", "x"), ("uu",)]
    for step in range(150):
        namespace, key = rng.choice(namespaces), rng.choice("pqrs")
        text = "".join(rng.choice("abcdefgh") for _ in range(6))
        value = {"n": rng.randrange(5), "text": text, "tags": rng.sample(["x", "y"], rng.randrange(3))}
        deed = rng.choice(["put", "put", "delete", "search", "names", "filter"])
        told = []
        for store in pair:
            if deed == "put":
                told.append(store.put(namespace, key, value))
            elif deed == "delete":
                told.append(store.delete(namespace, key))
            elif deed == "names":
                held = store.list_namespaces(prefix=("u",), suffix=("x",))
                # Its own store also lists namespaces that have become empty.
                full = [name for name in held if any(i.namespace == name for i in store.search(name, limit=99))]
                told.append(full)
            elif deed == "search" and indexed:
                told.append(plain(store.search(namespace[:1], query=text, limit=50)))
            else:
                found = store.search(namespace[:1], filter={"n": {"$gte": 2, "$ne": 3}}, limit=50)
                told.append(sorted(plain(found), key=str))
        if deed == "search" and indexed:  # equal scores may come in any order
            ours_, theirs = (sorted(t, key=lambda i: (-(i[3] if i[3] is not None else -2), str(i))) for t in told)
            assert ours_ == theirs, step
        else:
            assert told[0] == told[1], step


def test_namespaces_are_listed_to_a_depth_and_by_pattern() -> None:
    store = ours()
    for namespace in [("u",), ("u", "x"), ("u", "x", "y"), ("v", "x"), ("uu", "y")]:
        store.put(namespace, "k", {})
    assert store.list_namespaces(max_depth=1) == [("u",), ("uu",), ("v",)]
    assert store.list_namespaces(prefix=("*", "x")) == [("u", "x"), ("u", "x", "y"), ("v", "x")]
    assert store.list_namespaces(suffix=("y",), limit=1, offset=1) == [("uu", "y")]


def test_an_unknown_operator_is_refused() -> None:
    store = ours()
    store.put(("a",), "k", {"n": 1})
    with pytest.raises(ConfigError, match="no_such"):
        store.search(("a",), filter={"n": {"$no_such": 1}})


def test_each_element_of_a_list_is_found_and_forgotten_with_it() -> None:
    store = ours({"dims": 8, "embed": embed, "fields": ["tags[*]"]})
    store.put(("a",), "k", {"tags": ["aaa", "bbb", "ccc"]})
    store.put(("a",), "other", {"tags": ["ddd"]})
    assert store.search(("a",), query="ccc")[0].key == "k"
    store.put(("a",), "k", {"tags": ["aaa"]})
    assert (store.search(("a",), query="ccc")[0].score or 0) < 0.9
    store.put(("a",), "k", {"tags": ["aaa"]}, index=False)
    assert {item.key: item.score is None for item in store.search(("a",), query="aaa")} == {"k": True, "other": False}


async def test_the_async_methods_do_the_same() -> None:
    store = ours(INDEX)
    await store.aput(("a",), "k", {"text": "abc"})
    found = await store.asearch(("a",), query="abc")
    assert [item.key for item in found] == ["k"]
    await store.adelete(("a",), "k")
    assert await store.aget(("a",), "k") is None
