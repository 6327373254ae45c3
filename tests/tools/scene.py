"""A provider that makes nothing real and forgives nothing, and what tests of environments share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentrm import ResourceManager
from agentrm.tools import Completed, Environments, Place, Usage


class Pretend:
    """Knows what exists, and fails where a real engine would: creating twice, using what is not there."""

    def __init__(self) -> None:
        self.existing: set[str] = set()
        self.created: list[str] = []
        self.removed: list[str] = []
        self.unfit: set[str] = set()
        self.making = self.most_making = 0
        self.may_go = threading.Event()
        self.may_go.set()
        self.fault: Callable[[Place], None] = lambda place: None
        """Raises in the middle of a creation, when the object exists already."""
        self.stuck: set[str] = set()
        """Kinds that can't be removed."""
        self._lock = threading.Lock()

    def create(self, place: Place) -> None:
        with self._lock:
            assert place.id not in self.existing
            self.existing.add(place.id)
            self.created.append(place.id)
            self.making += 1
            self.most_making = max(self.most_making, self.making)
        try:
            self.may_go.wait()
            self.fault(place)
        finally:
            with self._lock:
                self.making -= 1

    def remove(self, place: Place) -> None:
        if place.kind in self.stuck:
            raise OSError(f"{place.id} is busy")
        with self._lock:
            self.existing.discard(place.id)
            self.removed.append(place.id)

    def is_there(self, place: Place) -> bool:
        return place.id in self.existing and place.id not in self.unfit

    def run(self, place: Place, words: Sequence[str], timeout_s: float | None, stop_fd: int) -> Completed:
        assert place.id in self.existing
        return Completed(0 if words[0] == "true" else 1, "", "it did not work", False, 0.0)

    def serve(self, place: Place, words: Sequence[str]) -> None:
        assert place.id in self.existing

    def usage(self, place: Place) -> Usage:
        return Usage(0, 0, ())


def pretending(home: Path, kinds: dict[str, Any], **section: Any) -> tuple[Environments, Pretend]:
    """Environments of a manager of their own whose provider makes nothing."""
    provider = Pretend()
    section = {"home": str(home), "kinds": {name: {"provider": "pretend", **kind} for name, kind in kinds.items()}} | section
    rm = ResourceManager(environments=section)
    return Environments(rm, providers={"pretend": provider}), provider


def is_running(pid: int) -> bool:
    """Whether the process is at work: not gone, and not a zombie that nobody has reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pids_in(folder: Path) -> list[int]:
    """Process ids that processes wrote into files of these names."""
    return [int(path.read_text()) for path in folder.glob("*.pid") if path.read_text().strip()]


def left_in(home: Path) -> list[str]:
    """What is left below a home: entries of the journal and folders of environments."""
    return [f"{part}/{name}" for part in ("journal", "places") if (home / part).is_dir() for name in os.listdir(home / part)]
