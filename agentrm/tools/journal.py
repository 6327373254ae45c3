"""The journal of environments: one small file for each, written before anything is made of it and removed after all of
it is gone. Whatever happens to its owner in between, the file says what there may be and whose it was.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentrm.storage import Disk
from agentrm.tools.owners import Owner, is_alive
from agentrm.tools.place import Place

__all__ = ["Entry", "Journal", "default_home"]

VERSION = 1

def default_home() -> Path:
    """`agentrm/environments` in the user's state folder ($XDG_STATE_HOME, else ~/.local/state)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "agentrm" / "environments"


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment. `since`: when it was asked for, in seconds since 1970. `abandoned`: its owner could not remove
    it, and leaves that to whoever looks through the journal."""

    place: Place
    owner: Owner
    program: str
    since: float
    abandoned: bool = False

    @property
    def is_left(self) -> bool:
        """Whether nobody looks after it any more."""
        return self.abandoned or not is_alive(self.owner)


class Journal:
    """The journal in a folder, which any number of processes may share."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "journal"
        self._disk = Disk()

    def open(self) -> None:
        """Makes its folder. Raises OSError if there can be none."""
        self._disk.make_folder(self._folder, durable=True)

    def folder_of(self, id: str) -> Path:
        """Where the environment's own folder is, or would be."""
        return self.home / "places" / id

    def write(self, entry: Entry) -> None:
        """All of the entry or nothing. Raises OSError if it can't be written; nothing may be made then."""
        self.open()
        known = asdict(replace(entry, place=replace(entry.place, variables={})))  # they may hold secrets
        data = json.dumps({**known, "version": VERSION}, default=str).encode()
        path, fd = self._unfinished(entry)
        try:
            self._disk.write_all(fd, data)
            self._disk.fsync(fd)
            self._disk.rename(path, self._folder / f"{entry.place.id}.json")
            self._disk.fsync_dir(self._folder)
        finally:
            os.close(fd)

    def _unfinished(self, entry: Entry) -> tuple[Path, int]:
        """A new file, locked for as long as its writer lives, so that one whose writer died is told by its lock."""
        while True:
            path = self._folder / f".{entry.place.id}.{uuid.uuid4().hex}.tmp"
            fd = self._disk.create(path)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return path, fd
            os.close(fd)  # taken for a dead one's between the two steps

    def abandon(self, entry: Entry) -> None:
        self.write(replace(entry, abandoned=True))

    def remove(self, entry: Entry) -> None:
        with suppress(FileNotFoundError):  # somebody else cleaned it up at the same time
            os.unlink(self._folder / f"{entry.place.id}.json")

    def entries(self) -> Iterator[Entry]:
        """All environments that exist or may exist."""
        with suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                if path.suffix == ".json":
                    with suppress(FileNotFoundError):
                        entry = _parse(path, self.folder_of(path.stem))
                        if entry is not None:
                            yield entry
                elif path.suffix == ".tmp":
                    _remove_unfinished(path)


def _remove_unfinished(path: Path) -> None:
    """Nothing was made yet of what its writer had not finished writing when it died."""
    with suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)


def _parse(path: Path, folder: Path) -> Entry | None:
    """None, with a warning, for what another version wrote or the disk damaged: whose it is can't be said."""
    try:
        read = json.loads(path.read_bytes())
        if read["version"] != VERSION:
            raise ValueError(f"version {read['version']}, not {VERSION}")
        place = read["place"]
        return Entry(
            Place(**{**place, "folder": folder, "ports": tuple(place["ports"])}),  # the home may have been moved
            Owner(**read["owner"]),
            read["program"],
            read["since"],
            read["abandoned"],
        )
    except (ValueError, KeyError, TypeError) as error:
        logging.getLogger("agentrm").warning("%s is not read: %s", path, error)
        return None
