"""The stores that sessions, memory and frameworks build on, as protocols: versioned blobs and vectors, by
tenant.

Every call names its tenant; nothing of another tenant can be reached with it. Keys are text in which `/`
separates parts by convention. The built-in store is `SqliteStore`; others register under the entry-point
`agentrm.stores` and are opened by their URL scheme (`open_store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Blob", "BlobStore", "Match", "Quota", "Store", "Usage", "Vector", "VectorStore"]


@dataclass(frozen=True, slots=True)
class Blob:
    """One version of a value. `version` counts from 1 per key; `written` is in seconds since 1970."""

    key: str
    version: int
    value: bytes = field(repr=False)  # may be secret, so never in a log by accident
    written: float


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold; None is no limit. `bytes` counts values and keys, vectors at their stored
    size.
    """

    bytes: int | None = None
    items: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What one tenant holds: `bytes` and `items` over blobs (all kept versions) and vectors."""

    bytes: int
    items: int


@dataclass(frozen=True, slots=True)
class Vector:
    """One embedding with its id (unique in its collection) and a small text payload, such as a message id."""

    id: str
    values: Sequence[float]
    payload: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """One search result. `score` is the cosine similarity, -1 to 1."""

    id: str
    score: float
    payload: str


class BlobStore(Protocol):
    """Bytes by tenant and key, with versions.

    A write is there for every reader once the call returns, as a whole or not at all; several keys of one
    `put_many` become visible together. All methods may be called from any thread.
    """

    def put(self, tenant: str, key: str, value: bytes, *, expect: int | None = None) -> int:
        """Stores `value` as the next version and returns its number.

        `expect` is the version that must be the newest one now (0: the key must be new); else
        VersionConflict. Raises QuotaExceeded, StorageFull, StoreBusy; nothing is stored then.
        """

    def put_many(self, tenant: str, items: Mapping[str, bytes]) -> None:
        """Stores all items, or none."""

    def get(self, tenant: str, key: str, *, version: int | None = None) -> Blob | None:
        """The newest version, or the one asked for if it is still kept; None if there is none."""

    def get_many(self, tenant: str, keys: Sequence[str]) -> dict[str, Blob]:
        """The newest versions of those keys that exist."""

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
        """Newest versions in the order of their keys (code points), `after` and `before` exclusive."""

    def versions(self, tenant: str, key: str) -> list[int]:
        """The kept versions of a key, oldest first."""

    def delete(self, tenant: str, keys: Sequence[str]) -> int:
        """Removes all versions of these keys, all keys or none; returns how many keys existed."""

    def delete_prefix(self, tenant: str, prefix: str) -> int:
        """Removes every key that begins with `prefix`; returns how many."""

    def tenants(self) -> list[str]:
        """The tenants that hold anything."""

    def usage(self, tenant: str) -> Usage:
        """What a tenant holds now."""


class VectorStore(Protocol):
    """Embeddings by tenant and collection. All vectors of one collection have the same length."""

    def add(self, tenant: str, collection: str, vectors: Sequence[Vector]) -> None:
        """Stores or replaces by id, all or none. Raises ValueError for a wrong length, QuotaExceeded,
        StorageFull.
        """

    def nearest(self, tenant: str, collection: str, query: Sequence[float], k: int = 10) -> list[Match]:
        """The `k` most similar by cosine, best first, ties by id. Exact. An empty list for an unknown
        collection.
        """

    def remove(self, tenant: str, collection: str, ids: Sequence[str] | None = None) -> int:
        """Removes these ids (None: the whole collection); returns how many there were."""


@runtime_checkable
class Store(BlobStore, VectorStore, Protocol):
    """Both kinds in one, which is what `open_store` returns."""

    def close(self) -> None:
        """Lets go of files and connections. Closing twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
