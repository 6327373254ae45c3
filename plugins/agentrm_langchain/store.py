"""LangGraph's long-term memory (`BaseStore`) over agentrm's blob and vector stores.

Items live in the session store's database: tenants, quotas, encryption and durability are the same. Semantic
search works as in LangGraph's own stores: give `index={"embed": ..., "dims": ..., "fields": [...]}`.
Time-to-live is not supported, which LangGraph refuses by itself.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, unquote

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from agentrm.errors import ConfigError
from agentrm.storage import Blob, Store, Vector
from agentrm_langchain.packing import pack, unpack

__all__ = ["SessionItems"]

_ITEMS = "items/"
_ALL = 1 << 30
_Namespace = tuple[str, ...]


def _folder(namespace: Iterable[str]) -> str:
    return _ITEMS + "".join(quote(part, safe="") + "/" for part in namespace)


def _place(key: str) -> tuple[_Namespace, str]:
    folder, _, name = key.removeprefix(_ITEMS).rpartition("//" if "//" in key else "/")
    return tuple(unquote(part) for part in folder.split("/") if part), unquote(name)


class SessionItems(BaseStore):
    """`BaseStore` on a `Store` of agentrm (`open_store(...)`, `SqliteStore`) for one tenant.

    All writes of one batch become visible together; its reads see what was there before them.
    """

    __slots__ = ("_embeddings", "_fields", "_serde", "_store", "_tenant")

    def __init__(self, store: Store, *, tenant: str = "default", index: IndexConfig | None = None) -> None:
        self._store, self._tenant, self._serde = store, tenant, JsonPlusSerializer()
        self._embeddings = ensure_embeddings(index.get("embed")) if index is not None else None
        fields = (index.get("fields") or ["$"]) if index is not None else []
        self._fields = {field: tokenize_path(field) if field != "$" else "$" for field in fields}

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        results: list[Result] = []
        puts: dict[tuple[_Namespace, str], PutOp] = {}
        for op in ops:
            results.append(None)
            if isinstance(op, GetOp):
                results[-1] = self._get(op.namespace, op.key)
            elif isinstance(op, SearchOp):
                results[-1] = self._search(op)
            elif isinstance(op, ListNamespacesOp):
                results[-1] = self._namespaces(op)
            elif isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
            else:
                raise ConfigError("op", op, "GetOp, SearchOp, ListNamespacesOp or PutOp")
        if puts:
            self._apply(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    # -- reading

    @staticmethod
    def _key(namespace: _Namespace, key: str) -> str:
        return f"{_folder(namespace)}/{quote(key, safe='')}"

    def _item(self, blob: Blob) -> Item:
        namespace, key = _place(blob.key)
        kind, data, created, _ = unpack(blob.value)
        return Item(
            value=self._serde.loads_typed((kind.decode(), data)),
            key=key,
            namespace=namespace,
            created_at=datetime.fromisoformat(created.decode()),
            updated_at=datetime.fromtimestamp(blob.written, timezone.utc),
        )

    def _get(self, namespace: _Namespace, key: str) -> Item | None:
        blob = self._store.get(self._tenant, self._key(namespace, key))
        return self._item(blob) if blob is not None else None

    def _matching(self, op: SearchOp) -> Iterator[Item]:
        for blob in self._store.scan(self._tenant, _folder(op.namespace_prefix)):
            item = self._item(blob)
            if all(_fits(item.value.get(field), wanted) for field, wanted in (op.filter or {}).items()):
                yield item

    def _search(self, op: SearchOp) -> list[SearchItem]:
        found = list(self._matching(op))
        scores: dict[tuple[_Namespace, str], float] = {}
        if op.query and self._embeddings is not None:
            query = self._embeddings.embed_query(op.query)
            for namespace in dict.fromkeys(item.namespace for item in found):
                for match in self._store.nearest(self._tenant, _folder(namespace), query, _ALL):
                    scores.setdefault((namespace, match.payload), match.score)  # best first: the best counts
            found.sort(key=lambda item: -scores.get((item.namespace, item.key), -2.0))
        return [
            SearchItem(
                item.namespace,
                item.key,
                item.value,
                item.created_at,
                item.updated_at,
                scores.get((item.namespace, item.key)),
            )
            for item in found[op.offset : op.offset + op.limit]
        ]

    def _namespaces(self, op: ListNamespacesOp) -> list[_Namespace]:
        held = {_place(blob.key)[0] for blob in self._store.scan(self._tenant, _ITEMS)}
        fitting = [ns for ns in held if all(_matches(condition, ns) for condition in op.match_conditions or ())]
        if op.max_depth is not None:
            fitting = list({namespace[: op.max_depth] for namespace in fitting})
        return sorted(fitting)[op.offset : op.offset + op.limit]

    # -- writing

    def _apply(self, puts: Mapping[tuple[_Namespace, str], PutOp]) -> None:
        keys = {where: self._key(*where) for where in puts}
        before = self._store.get_many(self._tenant, list(keys.values()))
        now = datetime.now(timezone.utc).isoformat().encode()
        vectors = self._embed(puts)
        items: dict[str, bytes] = {}
        for where, op in puts.items():
            if op.value is not None:
                kind, data = self._serde.dumps_typed(dict(op.value))
                old = before.get(keys[where])
                created = unpack(old.value)[2] if old else now
                items[keys[where]] = pack(kind.encode(), data, created, b"%d" % len(vectors.get(where, ())))
        if items:
            self._store.put_many(self._tenant, items)
        gone = [keys[where] for where, op in puts.items() if op.value is None]
        if gone:
            self._store.delete(self._tenant, gone)
        for where in puts:
            old = before.get(keys[where])
            self._reindex(*where, vectors.get(where, []), int(unpack(old.value)[3]) if old else 0)

    def _embed(self, puts: Mapping[tuple[_Namespace, str], PutOp]) -> dict[tuple[_Namespace, str], list[list[float]]]:
        if self._embeddings is None:
            return {}
        texts: list[str] = []
        owners: list[tuple[_Namespace, str]] = []
        for where, op in puts.items():
            if op.value is None or op.index is False:
                continue
            fields = self._fields if op.index is None else {field: tokenize_path(field) for field in op.index}
            for path in fields.values():
                for text in get_text_at_path(op.value, path):
                    texts.append(text)
                    owners.append(where)
        made: dict[tuple[_Namespace, str], list[list[float]]] = {}
        for where, values in zip(owners, self._embeddings.embed_documents(texts) if texts else [], strict=True):
            made.setdefault(where, []).append(values)
        return made

    def _reindex(self, namespace: _Namespace, key: str, vectors: list[list[float]], before: int) -> None:
        """Stores an item's vectors; `before` is how many it had."""
        collection, name = _folder(namespace), quote(key, safe="")
        if before > len(vectors):
            stale = [f"{name}/{number}" for number in range(len(vectors), before)]
            self._store.remove(self._tenant, collection, stale)
        if vectors:
            made = [Vector(f"{name}/{number}", values, key) for number, values in enumerate(vectors)]
            self._store.add(self._tenant, collection, made)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a field fits a filter: it is equal, or each of the filter's operators holds."""
    if isinstance(wanted, dict) and any(str(key).startswith("$") for key in wanted):
        return all(_holds(sign, value, bound) for sign, bound in wanted.items())
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(_fits(value.get(key), inner) for key, inner in wanted.items())
    return bool(value == wanted)


def _holds(sign: str, value: Any, bound: Any) -> bool:
    if sign in ("$eq", "$ne"):
        return bool(value == bound) == (sign == "$eq")
    if sign not in _ORDER:
        raise ConfigError("filter", sign, f"$eq, $ne, {', '.join(_ORDER)}")
    try:
        return _ORDER[sign](float(value), float(bound))
    except (TypeError, ValueError):
        return False  # what is no number is neither more nor less


_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def _matches(condition: MatchCondition, namespace: _Namespace) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(want in ("*", have) for want, have in zip(path, part, strict=True))
