"""Where the files of a session store are, and how any name becomes a safe file name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from agentrm.errors import ConfigError

__all__ = ["Layout", "file_name"]

_LONGEST = 120


def file_name(name: str) -> str:
    """A file name for any text: readable where possible, never a path, different for different names.

    Also where the file system ignores case: names that are not all lower case get a hash. Raises ConfigError
    for text that is no valid Unicode.
    """
    try:
        data = name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("session or tenant", name, "valid Unicode text") from error
    safe = quote(name, safe="-_@+=").replace(".", "%2E").replace("~", "%7E")
    if 0 < len(safe) <= _LONGEST and name == name.lower():
        return safe
    return f"{safe[:60]}~{hashlib.sha256(data).hexdigest()[:32]}"


class Layout:
    """The folder of a session store.

    ROOT/agentrm.db                            blobs and vectors
    ROOT/index.db                              the search index, derived
    ROOT/sessions/TENANT/SESSION/*.journal     the journal of a session; its owner file beside it
    ROOT/sessions/TENANT/SESSION/vectors.db    embeddings for compactions, derived
    ROOT/hibernated/TENANT/SESSION.session     hibernation files
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

    def vectors(self, tenant: str, session: str) -> Path:
        return self.session(tenant, session) / "vectors.db"

    def hibernated(self, tenant: str, session: str) -> Path:
        return self.root / "hibernated" / file_name(tenant) / f"{file_name(session)}.session"

    def journal_bytes(self, tenant: str) -> int:
        """What the journals of a tenant take on the disk."""
        return sum(path.stat().st_size for path in self.tenant(tenant).glob("*/*.journal"))
