"""A LangGraph checkpointer over agentrm's stores.

A thread is a session of the same name: its checkpoints are kept with the session's own blobs, so the one file
of a hibernated session holds the whole thread. Tenants, quotas, encryption and durability are those of the
session store.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentrm.context.sessions import SessionStore, blob_prefix
from agentrm.storage import Blob
from agentrm_langchain.packing import pack, unpack

__all__ = ["SessionSaver"]

_THREADS = "langgraph-threads/"
_PAGE = 64


def _part(text: str) -> str:
    return quote(text, safe="")


class SessionSaver(BaseCheckpointSaver[str]):
    """All of LangGraph's checkpointer protocol, sync and async, on `sessions.blobs`.

    A checkpoint and its channel values become visible together. Channel values are stored once per version.
    The async methods run the sync ones in a thread. `tenant` is whose threads these are.
    """

    def __init__(
        self, sessions: SessionStore, *, tenant: str = "default", serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self.sessions, self.tenant = sessions, tenant

    # -- keys: prefix / kind (c checkpoint, b channel value, w write) / namespace / ...

    def _root(self, thread: str) -> str:
        return f"{blob_prefix(thread)}langgraph/"

    def _checkpoints(self, thread: str, ns: str) -> str:
        return f"{self._root(thread)}c/{_part(ns)}/"

    def _values(self, thread: str, ns: str) -> str:
        return f"{self._root(thread)}b/{_part(ns)}/"

    def _writes(self, thread: str, ns: str, checkpoint: str) -> str:
        return f"{self._root(thread)}w/{_part(ns)}/{_part(checkpoint)}/"

    @staticmethod
    def _value_key(channel: str, version: object) -> str:
        return f"{_part(channel)}/{_part(str(version))}"

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        prefix = self._checkpoints(thread, ns)
        wanted = get_checkpoint_id(config)
        if wanted is not None:
            blob = self.sessions.blobs.get(self.tenant, prefix + _part(wanted))
        else:
            blob = next(self.sessions.blobs.scan(self.tenant, prefix, reverse=True, limit=1), None)
        return self._tuple(thread, ns, blob) if blob is not None else None

    def _tuple(self, thread: str, ns: str, blob: Blob) -> CheckpointTuple:
        kind, data, meta_kind, meta, parent = unpack(blob.value)
        checkpoint: Checkpoint = self.serde.loads_typed((kind.decode(), data))
        metadata: CheckpointMetadata = self.serde.loads_typed((meta_kind.decode(), meta))
        checkpoint["channel_values"] = self._channel_values(thread, ns, checkpoint["channel_versions"])
        return CheckpointTuple(
            self._config(thread, ns, checkpoint["id"]),
            checkpoint,
            metadata,
            self._config(thread, ns, parent.decode()) if parent else None,
            self._pending_writes(thread, ns, checkpoint["id"]),
        )

    @staticmethod
    def _config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
        return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}

    def _channel_values(self, thread: str, ns: str, versions: ChannelVersions) -> dict[str, Any]:
        prefix = self._values(thread, ns)
        keys = {prefix + self._value_key(channel, version): channel for channel, version in versions.items()}
        values: dict[str, Any] = {}
        for key, blob in self.sessions.blobs.get_many(self.tenant, list(keys)).items():
            kind, data = unpack(blob.value)
            if kind != b"empty":
                values[keys[key]] = self.serde.loads_typed((kind.decode(), data))
        return values

    def _pending_writes(self, thread: str, ns: str, checkpoint: str) -> list[tuple[str, str, Any]]:
        rows = []
        for blob in self.sessions.blobs.scan(self.tenant, self._writes(thread, ns, checkpoint)):
            task, path, index, channel, kind, data = unpack(blob.value)
            value = self.serde.loads_typed((kind.decode(), data))
            order = writes_sort_key(path.decode(), task.decode(), int(index))
            rows.append((order, (task.decode(), channel.decode(), value)))
        rows.sort(key=lambda row: row[0])
        return [write for _, write in rows]

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Newest first, within and across namespaces and threads."""
        wanted = get_checkpoint_id(config) if config else None
        earlier = get_checkpoint_id(before) if before else None
        given = 0
        for thread, ns, blob in self._newest_first(config):
            checkpoint_id = unquote(blob.key.rpartition("/")[2])
            if (wanted and checkpoint_id != wanted) or (earlier and checkpoint_id >= earlier):
                continue
            if limit is not None and given >= limit:
                return
            found = self._tuple(thread, ns, blob)
            metadata: dict[str, Any] = dict(found.metadata)
            if filter and any(metadata.get(key) != value for key, value in filter.items()):
                continue
            given += 1
            yield found

    def _newest_first(self, config: RunnableConfig | None) -> Iterator[tuple[str, str, Blob]]:
        ns = config["configurable"].get("checkpoint_ns") if config else None
        if config and ns is not None:
            thread = config["configurable"]["thread_id"]
            yield from ((thread, ns, blob) for blob in self._pages(self._checkpoints(thread, ns)))
            return
        threads = [config["configurable"]["thread_id"]] if config else self.threads()
        found = [
            (thread, unquote(blob.key.split("/")[-2]), blob)
            for thread in threads
            for blob in self._pages(f"{self._root(thread)}c/")
        ]
        yield from sorted(found, key=lambda item: item[2].key.rpartition("/")[2], reverse=True)

    def _pages(self, prefix: str) -> Iterator[Blob]:
        before: str | None = None
        while True:
            page = list(
                self.sessions.blobs.scan(self.tenant, prefix, before=before, reverse=True, limit=_PAGE)
            )
            yield from page
            if len(page) < _PAGE:
                return
            before = page[-1].key

    def threads(self) -> Sequence[str]:
        """The ids of all threads that have checkpoints, sorted."""
        found = self.sessions.blobs.scan(self.tenant, _THREADS)
        return sorted(unquote(blob.key.removeprefix(_THREADS)) for blob in found)

    def mark(self, thread: str) -> None:
        """Notes that the thread exists, as every `put` does."""
        self.sessions.blobs.put(self.tenant, _THREADS + _part(thread), b"")

    # -- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        kept: dict[str, Any] = dict(checkpoint)
        values = kept.pop("channel_values")
        items: dict[str, bytes] = {_THREADS + _part(thread): b""}
        prefix = self._values(thread, ns)
        for channel, version in new_versions.items():
            kind, data = self.serde.dumps_typed(values[channel]) if channel in values else ("empty", b"")
            items[prefix + self._value_key(channel, version)] = pack(kind.encode(), data)
        kind, data = self.serde.dumps_typed(kept)
        meta_kind, meta = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        parent = config["configurable"].get("checkpoint_id") or ""
        key = self._checkpoints(thread, ns) + _part(checkpoint["id"])
        items[key] = pack(kind.encode(), data, meta_kind.encode(), meta, parent.encode())
        self.sessions.blobs.put_many(self.tenant, items)
        return self._config(thread, ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        thread, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        prefix = self._writes(thread, ns, config["configurable"]["checkpoint_id"])
        items: dict[str, bytes] = {}
        final: list[str] = []
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            key = f"{prefix}{_part(task_id)}/{index}"
            kind, data = self.serde.dumps_typed(value)
            items[key] = pack(
                task_id.encode(), task_path.encode(), b"%d" % index, channel.encode(), kind.encode(), data
            )
            if index >= 0:  # what a task wrote once stands; errors and interrupts are replaced
                final.append(key)
        for key in self.sessions.blobs.get_many(self.tenant, final):
            del items[key]
        if items:
            self.sessions.blobs.put_many(self.tenant, items)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Whole part one more; the fraction keeps versions of forks apart."""
        whole = int(str(current).split(".")[0]) if current is not None else 0
        return f"{whole + 1:032}.{uuid.uuid4().int % 10**16:016}"

    # -- removing and copying

    def delete_thread(self, thread_id: str) -> None:
        blobs = self.sessions.blobs
        blobs.delete(self.tenant, [_THREADS + _part(thread_id)])
        for kind in ("c/", "w/", "b/", ""):  # checkpoints first: what is left after a crash is not reachable
            blobs.delete_prefix(self.tenant, self._root(thread_id) + kind)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        runs = set(run_ids)
        for thread in self.threads():
            gone = [
                (ns, found.checkpoint["id"])
                for ns, found in self._all(thread)
                if found.metadata.get("run_id") in runs
            ]
            self._remove(thread, gone)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`keep_latest` also keeps the ancestors that delta channels of the latest are rebuilt from."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy {strategy!r} is none of 'keep_latest', 'delete'")
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            chains: dict[str, list[CheckpointTuple]] = {}
            for ns, found in self._all(thread):
                chains.setdefault(ns, []).append(found)
            for ns, found_here in chains.items():
                needed = self._needed(found_here)
                self._remove(
                    thread, [(ns, f.checkpoint["id"]) for f in found_here if f.checkpoint["id"] not in needed]
                )

    @staticmethod
    def _needed(newest_first: Sequence[CheckpointTuple]) -> set[str]:
        by_id = {found.checkpoint["id"]: found for found in newest_first}
        at: CheckpointTuple | None = newest_first[0]
        assert at is not None
        needed = {at.checkpoint["id"]}
        open_channels = set(at.metadata.get("counters_since_delta_snapshot", {}))
        open_channels -= set(at.checkpoint["channel_values"])
        while open_channels and at is not None and at.parent_config is not None:
            at = by_id.get(at.parent_config["configurable"]["checkpoint_id"])
            if at is not None:
                needed.add(at.checkpoint["id"])
                open_channels -= set(at.checkpoint["channel_values"])
        return needed

    def _all(self, thread: str) -> Iterator[tuple[str, CheckpointTuple]]:
        for _, ns, blob in self._newest_first({"configurable": {"thread_id": thread}}):
            yield ns, self._tuple(thread, ns, blob)

    def _remove(self, thread: str, gone: Sequence[tuple[str, str]]) -> None:
        blobs = self.sessions.blobs
        blobs.delete(self.tenant, [self._checkpoints(thread, ns) + _part(one) for ns, one in gone])
        for ns, one in gone:
            blobs.delete_prefix(self.tenant, self._writes(thread, ns, one))
        left = list(self._all(thread))
        for ns in {ns for ns, _ in gone}:
            prefix = self._values(thread, ns)
            used = {
                prefix + self._value_key(channel, version)
                for where, found in left
                if where == ns
                for channel, version in found.checkpoint["channel_versions"].items()
            }
            unused = [b.key for b in blobs.scan(self.tenant, prefix) if b.key not in used]
            blobs.delete(self.tenant, unused)
        if not left:
            blobs.delete(self.tenant, [_THREADS + _part(thread)])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = self._root(source_thread_id), self._root(target_thread_id)
        items = {
            target + blob.key.removeprefix(source): blob.value
            for blob in self.sessions.blobs.scan(self.tenant, source)
        }
        if items:
            items[_THREADS + _part(target_thread_id)] = b""
            self.sessions.blobs.put_many(self.tenant, items)

    # -- the same, from coroutines

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        def read() -> tuple[CheckpointTuple, ...]:
            return tuple(self.list(config, filter=filter, before=before, limit=limit))

        for found in await asyncio.to_thread(read):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        def work() -> None:
            self.prune(thread_ids, strategy=strategy)

        await asyncio.to_thread(work)
