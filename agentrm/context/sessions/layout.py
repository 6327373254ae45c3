"""Where the files of a session store are, and how any name becomes a safe file name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

__all__ = ["Layout", "file_name"]

_LONGEST = 120


def file_name(name: str) -> str:
    """A file name for any text: readable where possible, never a path, different for different names."""
    safe = quote(name, safe="-_@+= ").replace(".", "%2E").replace(" ", "%20")
    if 0 < len(safe) <= _LONGEST:
        return safe
    return f"{safe[:60]}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


class Layout:
    """The folder of a session store.

    ROOT/agentrm.db               blobs and vectors
    ROOT/index.db                 the search index, derived
    ROOT/TENANT/SESSION/*.journal the journal of a session, with its owner file
    ROOT/hibernated/TENANT/SESSION.session
    """

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def blobs(self) -> Path:
        return self.root / "agentrm.db"

    @property
    def index(self) -> Path:
        return self.root / "index.db"

    def tenant(self, tenant: str) -> Path:
        return self.root / "sessions" / file_name(tenant)

    def session(self, tenant: str, session: str) -> Path:
        return self.tenant(tenant) / file_name(session)

    def owner(self, tenant: str, session: str) -> Path:
        return self.session(tenant, session) / "owner"

    def hibernated(self, tenant: str, session: str) -> Path:
        return self.root / "hibernated" / file_name(tenant) / f"{file_name(session)}.session"

    def journal_bytes(self, tenant: str) -> int:
        """What the journals of a tenant take on the disk."""
        return sum(path.stat().st_size for path in self.tenant(tenant).glob("*/*.journal"))
