"""What dead owners left: found through the journal, removed without touching what belongs to the living."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from agentrm.tools.journal import Entry, Journal
from agentrm.tools.local import disk_bytes
from agentrm.tools.place import Provider
from agentrm.tools.processes import marked
from agentrm.tools.providers import load_provider

__all__ = ["Leftover", "clean", "leftovers"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """One environment that nobody looks after any more, and what of it is on this machine: processes, and bytes on
    disk."""

    entry: Entry
    processes: int
    disk_bytes: int


def leftovers(home: Path) -> list[Leftover]:
    """What `clean` would remove."""
    left = [entry for entry in Journal(home).entries() if entry.is_left]
    running = [one.environment for one in marked({entry.place.id for entry in left})]
    return [Leftover(one, running.count(one.place.id), disk_bytes(one.place.folder)) for one in left]


def clean(home: Path, *, grace_s: float = 0.0) -> tuple[list[Entry], dict[str, BaseException]]:
    """Removes what dead owners left below `home`, and what living ones could not remove themselves. Returns what was
    removed, and the error of each that could not be, by its id. Several may clean the same home at once."""
    journal = Journal(home)
    removed: list[Entry] = []
    problems: dict[str, BaseException] = {}
    providers: dict[str, Provider] = {}
    for entry in journal.entries():
        if not entry.is_left:
            continue
        name = entry.place.provider
        try:
            provider = providers.get(name) or providers.setdefault(name, load_provider(name))
            provider.remove(replace(entry.place, grace_s=grace_s))
            journal.remove(entry)
        except Exception as error:  # noqa: BLE001 - the others are cleaned all the same
            logging.getLogger("agentrm").warning("environment %s is left: %s", entry.place.id, error)
            problems[entry.place.id] = error
        else:
            removed.append(entry)
    return removed, problems
