"""The sections on tools: how many calls of each run at once, which must not run together, and their environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from agentrm.config.readers import Reader, either, flag, listed, named, seconds, text, whole
from agentrm.config.schema import Section, key, section
from agentrm.config.sections import MOST_LANES
from agentrm.errors import ConfigError

MOST_CONFLICTS = 5
"""Conflict groups of one tool. With the limit that exclusive tools need they are all that one call is held to."""

MOST_PORTS = 16


@dataclass(frozen=True, slots=True)
class Tool(Section):
    """How calls of the tools that match the name, which may be a pattern, run beside others. They get lanes of their
    own, apart from those of the pool `tools`; the first pattern that matches counts.

    A call gets its lane and its places in all of its conflict groups together; while it waits it holds nothing.
    """

    concurrent: int | None = key(
        whole(1, MOST_LANES),
        None,
        "Calls that may run at once, of all tools that match together; null: as many as `pools.tools.lanes`.",
    )
    conflicts: tuple[str, ...] = key(
        listed(text("the name of a conflict group")),
        (),
        "Conflict groups: of each only one call runs at a time, whatever its tool, unless `conflict_groups` says more.",
    )
    exclusive: bool = key(
        flag(),
        False,
        "Whether no other tool call, listed or not, may run beside one of these. While one waits none begins.",
    )

    def check(self, key: str) -> None:
        if len(set(self.conflicts)) != len(self.conflicts) or len(self.conflicts) > MOST_CONFLICTS:
            allowed = f"each group once, at most {MOST_CONFLICTS}"
            raise ConfigError(f"{key}.conflicts", list(self.conflicts), allowed)
        if self.exclusive and (self.conflicts or self.concurrent not in (None, 1)):
            given = self.conflicts or self.concurrent
            raise ConfigError(f"{key}.exclusive", given, "neither conflicts nor concurrent beside it: it runs alone")


@dataclass(frozen=True, slots=True)
class ConflictGroup(Section):
    """A group that more than one call may be in at a time. Groups that tools name need not be listed."""

    concurrent: int = key(whole(1, MOST_LANES), 1, "Calls of the group that may run at once.")


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


def _word() -> Reader[str]:
    allowed = "a word of a command line (text)"

    def read(value: object, key: str) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(key, value, allowed)
        return value

    return Reader(allowed, read)


COMMAND = listed(_word())


@dataclass(frozen=True, slots=True)
class Kind(Section):
    """One kind of tool environment: how it is made, and who may use it together.

    Commands are lists of words, run without a shell. In a word `$NAME` stands for one of the environment's variables.
    """

    provider: str = key(
        text("the name of a provider"), "local", "Who makes it: `local`, `docker`, or one that is installed."
    )
    setup: tuple[str, ...] = key(COMMAND, (), "A command that prepares it, run in it once.")
    setup_s: float = key(seconds(), 600.0, "Seconds that making and preparing it may take.")
    server: tuple[str, ...] = key(COMMAND, (), "A command that is kept running in it, such as a tool server.")
    health: tuple[str, ...] = key(
        COMMAND, (), "A command whose exit status says whether it is fit for use, beside that its parts must be there."
    )
    share: int | Literal["any"] = key(
        either("any", whole()), 1, "Programs that may use one at the same time; `any`: all that want to."
    )
    ports: int = key(
        whole(0, MOST_PORTS), 0, "Free ports that it gets, on loopback, in the variables `PORT`, `PORT_2`, `PORT_3` ..."
    )
    variables: Mapping[str, str] = key(named(text()), _empty, "Environment variables of its processes.")
    options: Mapping[str, str] = key(named(text()), _empty, "What its provider wants to know; for `docker`: `image`.")


@dataclass(frozen=True, slots=True)
class Environments(Section):
    """Where programs run their tools: made ahead, shared, checked, and gone when the program ends."""

    home: str | None = key(
        text("the path of a folder"),
        None,
        "Where they and the journal of who owns them are; null: `agentrm/environments` in the user's state folder.",
    )
    preparing: int = key(whole(1, MOST_LANES), 2, "Environments that may be in preparation at once.")
    remove_s: float = key(
        seconds(), 60.0, "Seconds that a program's end waits for an environment to be removed; it goes on behind."
    )
    grace_s: float = key(
        seconds(zero=True), 2.0, "Seconds between the polite signal to a process and the one that ends it."
    )
    kinds: Mapping[str, Kind] = key(named(section(Kind)), lambda: MappingProxyType({}), "The kinds, by name.")
