"""SQLite and journal files behind the tiers: versioned, tenant-keyed stores, safe against crashes."""

from agentrm.storage.disk import Disk, FaultyDisk, write_atomically
from agentrm.storage.errors import (
    DamagedData,
    QuotaExceeded,
    SchemaTooNew,
    StorageError,
    StorageFull,
    StoreBusy,
    VersionConflict,
    WriteFailed,
    WrongKey,
)
from agentrm.storage.frames import Damage
from agentrm.storage.journal import Fsync, Journal, Record, Replay, read_journal
from agentrm.storage.protocols import Blob, BlobStore, Match, Quota, Store, Usage, Vector, VectorStore
from agentrm.storage.registry import open_store
from agentrm.storage.sealing import AesGcmSealer, Sealer
from agentrm.storage.sqlite import SqliteStore

__all__ = [
    "AesGcmSealer",
    "Blob",
    "BlobStore",
    "Damage",
    "DamagedData",
    "Disk",
    "FaultyDisk",
    "Fsync",
    "Journal",
    "Match",
    "Quota",
    "QuotaExceeded",
    "Record",
    "Replay",
    "SchemaTooNew",
    "Sealer",
    "SqliteStore",
    "StorageError",
    "StorageFull",
    "Store",
    "StoreBusy",
    "Usage",
    "Vector",
    "VectorStore",
    "VersionConflict",
    "WriteFailed",
    "WrongKey",
    "open_store",
    "read_journal",
    "write_atomically",
]
