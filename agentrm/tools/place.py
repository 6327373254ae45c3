"""A place where tools run, as its provider sees it, and what providers must be able to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Completed", "Place", "Provider", "Usage"]


@dataclass(frozen=True, slots=True)
class Place:
    """One environment before, while and after it exists. Everything that a provider makes for it carries its `id` as
    name or label, so that it can be removed by name alone, whatever was made of it.

    `folder`: a folder of its own, which the provider makes (or not) and removes. `ports`: free ports on loopback.
    `variables`: environment variables of its processes, the ports (`PORT`, `PORT_2` ...) among them. `options`: what
    the configuration says for the provider. `grace_s`: seconds between the polite signal and the one that ends.
    """

    id: str
    kind: str
    provider: str
    folder: Path
    ports: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 2.0

    @property
    def files(self) -> Path:
        """Where the files of its tools are, as this machine sees them."""
        return self.folder / "files"

    def filled(self, words: Sequence[str]) -> list[str]:
        """A command in which `$NAME` stands for one of the variables; other dollars stay."""
        known = self.variables
        return [re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda m: known.get(m[1] or m[2], m[0]), word) for word in words]


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. `returncode` is negative for a signal, as in `subprocess`. Long outputs are cut in their
    middle, and say so. `timed_out`: it was ended because its time was up. `run_s`: seconds that it ran."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    run_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What an environment uses now: bytes on disk, processes, and the TCP ports on which they listen."""

    disk_bytes: int
    processes: int
    ports: tuple[int, ...]


class Provider(Protocol):
    """Makes environments of one sort. Registered in the entry-point group `agentrm.environments` as a callable without
    arguments that returns it. Methods are called from several threads, for one place never two at once but `run`."""

    def create(self, place: Place) -> None:
        """Makes it. May raise anything, at any step, or take long: `remove` is called afterwards."""
        ...

    def remove(self, place: Place) -> None:
        """Ends and removes whatever exists of it, by its id. Nothing there is no error. Also called in other processes
        than the one that made it, after that one died."""
        ...

    def is_there(self, place: Place) -> bool:
        """Whether what `create` made still is there, and what `serve` started still runs."""
        ...

    def run(self, place: Place, words: Sequence[str], timeout_s: float | None, stop_fd: int) -> Completed:
        """Runs a command in it and returns when that, and everything that it started, has ended; ends them after
        `timeout_s` seconds, or when `stop_fd` becomes readable."""
        ...

    def serve(self, place: Place, words: Sequence[str]) -> None:
        """Starts a command that runs as long as the environment exists."""
        ...

    def usage(self, place: Place) -> Usage:
        """What it uses now."""
        ...
