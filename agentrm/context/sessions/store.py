"""All sessions of all tenants in one folder: open, list, hibernate, restore, delete; isolated, with quotas.

A tenant's sessions are reached with its name only. `authorise(action, tenant, session)` is asked before each
of open, list, read, hibernate, restore, export and delete, and refuses by returning False.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrm.context.sessions.errors import (
    NotAuthorised,
    SessionExists,
    SessionLocked,
    SessionNotFound,
)
from agentrm.context.sessions.hibernation import Hibernated, read_hibernated
from agentrm.context.sessions.index import TextIndex
from agentrm.context.sessions.layout import Layout
from agentrm.context.sessions.owner import OwnerLock, owner_of
from agentrm.context.sessions.quotas import JournalQuotas
from agentrm.context.sessions.records import SCHEMA, decode, encode
from agentrm.context.sessions.recovery import recover
from agentrm.context.sessions.resources import Checker
from agentrm.context.sessions.session import Session
from agentrm.context.sessions.sleep import refuse_fork, renamed, write_session
from agentrm.context.sessions.snapshot import Snapshot
from agentrm.context.sessions.state import SessionState, blob_prefix
from agentrm.context.sessions.view import Compactor, DefaultCompactor
from agentrm.errors import ConfigError
from agentrm.storage import (
    BlobStore,
    Disk,
    Fsync,
    Journal,
    Quota,
    Replay,
    SchemaTooNew,
    Sealer,
    SqliteStore,
    read_journal,
)
from agentrm.storage.errors import write_error

__all__ = ["Card", "SessionStore"]

Authorise = Callable[[str, str, str], bool]


@dataclass(frozen=True, slots=True)
class Card:
    """One session in a listing, as of when it was last closed, hibernated or opened. Times in seconds since
    1970.
    """

    tenant: str
    session: str
    status: str
    messages: int
    created: float
    last_active: float
    hibernated: str | None  # the hibernation file


def _allow(action: str, tenant: str, session: str) -> bool:
    return True


class SessionStore:
    """Sessions in the folder `root` (made if needed).

    `blobs` is any `BlobStore`; default: SQLite in the folder. `fsync` and `journal` (further options of
    `Journal`) say what an acknowledged append guarantees. `quotas` bound a tenant's journals (bytes) and
    sessions (items); "*" is for all others. `compactor` makes contexts fit (default: agentrm's extractive
    one) between the watermarks `high` and `low`, shares of the budget. `safe_tools` names tools whose calls
    may be run twice. `checkers` judge attached resources by kind.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        blobs: BlobStore | None = None,
        fsync: Fsync = "batch",
        quotas: Mapping[str, Quota] | None = None,
        sealer: Sealer | None = None,
        authorise: Authorise = _allow,
        compactor: Compactor | None = None,
        high: float = 0.8,
        low: float = 0.5,
        safe_tools: Collection[str] = (),
        checkers: Mapping[str, Checker] | None = None,
        embed: bool = True,
        wall: Callable[[], float] = time.time,
        disk: Disk | None = None,
        journal: Mapping[str, Any] | None = None,
    ) -> None:
        self.layout = Layout(Path(root))
        self.layout.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._own_blobs = SqliteStore(self.layout.blobs, fsync=fsync, sealer=sealer) if blobs is None else None
        self.blobs: BlobStore = blobs if blobs is not None else self._own_blobs  # type: ignore[assignment]
        self._fsync, self.sealer, self._disk = fsync, sealer, disk or Disk()
        self._quotas = JournalQuotas(quotas or {}, self.layout.journal_bytes)
        self._authorise, self._compactor = authorise, compactor
        if not 0 < low < high <= 1:
            raise ConfigError("context.high, context.low", (high, low), "0 < low < high <= 1")
        self._watermarks = (high, low)
        self._safe_tools, self._checkers, self._wall = frozenset(safe_tools), dict(checkers or {}), wall
        self._journal_options, self._embed = dict(journal or {}), embed
        self._index = TextIndex(self.layout.index, sealer)
        self._lock = threading.Lock()
        self._live: dict[tuple[str, str], Session] = {}

    @classmethod
    def from_url(cls, url: str, **options: Any) -> SessionStore:
        """The store of a configuration's `context.store`: `sqlite:///folder` (four slashes: an absolute
        path).
        """
        if not url.startswith("sqlite:///") or len(url) <= len("sqlite:///"):
            raise ConfigError("context.store", url, 'a URL like "sqlite:///folder"')
        return cls(url.removeprefix("sqlite:///"), **options)

    def __repr__(self) -> str:
        return f"<SessionStore {self.layout.root} open={len(self._live)}>"

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the sessions that are still open, then the files."""
        with ExitStack() as closing:  # one that fails to close does not keep the others open
            if self._own_blobs is not None:
                closing.callback(self._own_blobs.close)
            closing.callback(self._index.close)
            for session in self.live():
                closing.callback(session.close)

    def allow(self, action: str, tenant: str, session: str) -> None:
        """Raises NotAuthorised if the hook refuses."""
        if not self._authorise(action, tenant, session):
            raise NotAuthorised(action, tenant, session)

    # -- opening

    def open(self, session: str, *, tenant: str = "default", create: bool = True, takeover: bool = False) -> Session:
        """Becomes the session's owner; `session.recovered` says what was found.

        Raises SessionNotFound (with create=False), SessionLocked while another owner lives, QuotaExceeded,
        SchemaTooNew, WrongKey, StorageFull. `takeover` is for an owner on another machine that is known to be
        gone.
        """
        self.allow("open", tenant, session)
        if not self.exists(session, tenant=tenant):
            if not create:
                raise SessionNotFound(tenant, session)
            self._quotas.one_more(tenant, lambda: len(self._names(tenant)))
        return self._open(tenant, session, takeover, None)

    def exists(self, session: str, *, tenant: str = "default") -> bool:
        """True if the tenant has a session of that name with a journal here."""
        return any(self.layout.session(tenant, session).glob("*.journal"))

    def _names(self, tenant: str) -> list[str]:
        return [blob.key.removeprefix("cards/") for blob in self.blobs.scan(tenant, "cards/")]

    def context_of(self, tenant: str, session: str) -> bytes:
        """What sealed records of a session are bound to."""
        return f"{tenant}\0{session}".encode()

    def _open(self, tenant: str, session: str, takeover: bool, restored: Hibernated | None) -> Session:
        folder = self.layout.session(tenant, session)
        try:
            self._disk.make_folder(folder, durable=self._fsync != "never")
        except OSError as error:
            raise write_error(str(folder), "making", error) from error
        path = self.layout.owner(tenant, session)
        lock = OwnerLock.acquire(path, f"{tenant}/{session}", wall=self._wall, takeover=takeover)
        try:
            opened = self._opened(tenant, session, lock, restored)
        except BaseException:
            lock.release()
            raise
        with self._lock:
            self._live[tenant, session] = opened
        return opened

    def _opened(self, tenant: str, session: str, lock: OwnerLock, restored: Hibernated | None) -> Session:
        folder = self.layout.session(tenant, session)
        context = self.context_of(tenant, session)
        before = read_journal(folder, sealer=self.sealer, context=context)
        self._refuse_newer(folder, before)
        if restored is not None:
            refuse_fork(f"{tenant}/{session}", self.layout.hibernated(tenant, session), before, restored)
        journal = Journal(
            folder, fsync=self._fsync, disk=self._disk, sealer=self.sealer, context=context,
            replay=before, **self._journal_options,
        )  # fmt: skip
        try:
            return self._folded(tenant, session, lock, restored, journal)
        except BaseException:
            journal.close()
            raise

    def _folded(
        self, tenant: str, session: str, lock: OwnerLock, restored: Hibernated | None, journal: Journal
    ) -> Session:
        held = list(journal.opened.records)
        warnings = journal.opened.warnings
        journal.forget_opened()
        if not held and restored is None:
            held.append(journal.append(encode("begin", self._wall(), schema=SCHEMA, tenant=tenant, session=session)))
        elif restored is not None and len(restored.records) > len(held):
            self._quotas.charge(tenant, sum(map(len, restored.records[len(held) :])))
            prefix = blob_prefix(session)
            self.blobs.put_many(tenant, {prefix + key: value for key, value in restored.blobs.items()})
            # Last and in one step: a crash leaves the session as it was, or restored.
            held += journal.adopt(restored.records[len(held) :])
        state = SessionState()
        for record in held:
            fields, raw = decode(record.payload)
            state.apply(fields, raw, (record.segment, record.offset, record.size), record.sequence)
        in_order = False

        def charge(size: int) -> None:
            if in_order:  # putting a session in order is not refused by its quota
                self._quotas.charge(tenant, size)

        opened = Session(
            tenant=tenant,
            session=session,
            journal=journal,
            state=state,
            lock=lock,
            index=self._index,
            blobs=self.blobs,
            wall=self._wall,
            charge=charge,
            sleep=self._hibernate,
            left=lambda session: self._left(session, None),
            compactor=self._compactor or DefaultCompactor(self._vectors(tenant, session)),
            watermarks=self._watermarks,
        )
        recover(
            opened,
            state,
            warnings=warnings,
            predecessor=lock.predecessor.pid if lock.predecessor is not None else None,
            safe_tools=self._safe_tools,
            checkers=self._checkers,
        )
        in_order = True
        self._write_card(opened, None)
        return opened

    def replay(self, session: str, *, tenant: str = "default") -> Replay:
        """The session's records as they are in the files now; nothing is changed."""
        folder = self.layout.session(tenant, session)
        return read_journal(folder, sealer=self.sealer, context=self.context_of(tenant, session))

    def _refuse_newer(self, folder: Path, replay: Replay) -> None:
        if replay.records:
            fields, _ = decode(replay.records[0].payload)
            if fields.get("schema", 0) > SCHEMA:
                raise SchemaTooNew(str(folder), fields["schema"], SCHEMA)

    # -- the listing

    def _write_card(self, session: Session, hibernated: str | None) -> None:
        card = {
            "status": session.status,
            "messages": len(session),
            "created": session.created,
            "last_active": session.last_active,
            "hibernated": hibernated,
        }
        self.blobs.put(session.tenant, f"cards/{session.id}", json.dumps(card).encode())

    def list(self, *, tenant: str = "default") -> list[Card]:
        """The tenant's sessions, by name."""
        self.allow("list", tenant, "*")
        return [
            Card(tenant, blob.key.removeprefix("cards/"), **json.loads(blob.value))
            for blob in self.blobs.scan(tenant, "cards/")
        ]

    def read(self, session: str, *, tenant: str = "default") -> Snapshot:
        """The session as it is now, without becoming its owner. Raises SessionNotFound, WrongKey."""
        self.allow("read", tenant, session)
        if not self.exists(session, tenant=tenant):
            raise SessionNotFound(tenant, session)
        replay = self.replay(session, tenant=tenant)
        self._refuse_newer(self.layout.session(tenant, session), replay)
        return Snapshot(tenant, session, replay)

    def delete(self, session: str, *, tenant: str = "default") -> None:
        """Removes a session for good: journal, index, blobs, hibernation file. Raises SessionLocked,
        SessionNotFound.
        """
        self.allow("delete", tenant, session)
        if not self.exists(session, tenant=tenant):
            raise SessionNotFound(tenant, session)
        owner = owner_of(self.layout.owner(tenant, session))
        if owner is not None:
            raise SessionLocked(f"{tenant}/{session}", owner)
        self._index.forget(tenant, session)
        self.blobs.delete(tenant, [f"cards/{session}"])
        self.blobs.delete_prefix(tenant, blob_prefix(session))
        self.layout.hibernated(tenant, session).unlink(missing_ok=True)
        shutil.rmtree(self.layout.session(tenant, session))
        self._quotas.forget(tenant)

    # -- hibernation

    def _hibernate(self, session: Session) -> str:
        path = self.layout.hibernated(session.tenant, session.id)
        self._write_hibernated(session, path)
        self._left(session, str(path))
        return str(path)

    def _left(self, session: Session, hibernated: str | None) -> None:
        """Called by a session that ends, before it gives up its ownership."""
        with self._lock:
            self._live.pop((session.tenant, session.id), None)
        self._write_card(session, hibernated)

    def _write_hibernated(self, session: Session, path: Path) -> None:
        session.flush()
        write_session(
            session,
            self.replay(session.id, tenant=session.tenant),
            path,
            embedded=self._embed,
            now=self._wall(),
            blobs=self.blobs,
            disk=self._disk,
            sealer=self.sealer,
        )

    def restore(
        self,
        source: str | Path,
        *,
        tenant: str | None = None,
        as_session: str | None = None,
        takeover: bool = False,
    ) -> Session:
        """Opens a hibernated session; `source` is its file, or the name of a session hibernated here.

        The file is not changed. If the session is in this store as well, the longer history goes on, provided
        that one begins with the other; else SessionForked. `as_session` makes a new session of that name from
        the file. Raises SchemaTooNew, DamagedData, WrongKey, SessionLocked, SessionExists, SessionNotFound.
        """
        path = source if isinstance(source, Path) else self.layout.hibernated(tenant or "default", source)
        if not isinstance(source, Path) and not path.exists():
            path = Path(source)
        if not path.exists():
            raise SessionNotFound(tenant or "default", str(source))
        file = read_hibernated(path, sealer=self.sealer)
        tenant, session = tenant or file.tenant, as_session or file.session
        self.allow("restore", tenant, session)
        if as_session is not None or tenant != file.tenant:
            if self.exists(session, tenant=tenant):
                raise SessionExists(tenant, session)
            file = renamed(file, tenant, session)
        if not file.embedded and not self.exists(session, tenant=tenant):
            raise SessionNotFound(tenant, session)
        return self._open(tenant, session, takeover, file)

    def _vectors(self, tenant: str, session: str) -> Path | None:
        """Embeddings tell what a text is about, so an encrypted store keeps none in a plain file."""
        return self.layout.vectors(tenant, session) if self.sealer is None else None

    def now(self) -> float:
        """Wall time in seconds since 1970, from the clock that the store was given."""
        return self._wall()

    def live(self) -> Iterator[Session]:
        """The sessions that this object has open."""
        with self._lock:
            return iter(list(self._live.values()))
