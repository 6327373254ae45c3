"""Tools in the kernel: a pool for each tool that is listed, a gauge for each conflict group, one for exclusive tools.

A gauge counts calls at a time, over several pools. A call takes one place in each gauge of its tool, together with its
lane or not at all; a call of an exclusive tool takes all places of the gauge of which every other tool call takes one,
so it runs alone, and while it waits no other begins. The places are given back when the work has really ended: one that
was reaped and could not be stopped still has the screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentrm.config import TOOL_POOL, Limit, tool_pool
from agentrm.errors import ConfigError

if TYPE_CHECKING:
    from agentrm.config import Config

__all__ = ["EXCLUSIVE", "MOST_TOGETHER", "ToolLimits", "pool_of_tool", "tool_limits"]

EXCLUSIVE = "tools (exclusive)"
"""The name of the gauge of exclusive tools in statistics."""

MOST_TOGETHER = 60
"""Tools whose calls may depend on each other: the kernel looks at so many pools together."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What tools need of the kernel: the gauges by name, and of each pool its gauges as (place in `gauges`, places that
    a call takes)."""

    gauges: tuple[tuple[str, Limit], ...]
    of_pool: dict[str, tuple[tuple[int, int], ...]]


def tool_limits(config: Config) -> ToolLimits:
    """The gauges of the configuration's tools."""
    groups = dict.fromkeys(group for tool in config.tools.values() for group in tool.conflicts)
    gauges = [(f"conflict_groups.{group}", _at_once(_room(config, group))) for group in groups]
    number = {group: place for place, group in enumerate(groups)}
    of_pool = {
        tool_pool(pattern): tuple((number[group], 1) for group in tool.conflicts)
        for pattern, tool in config.tools.items()
    }
    if any(tool.exclusive for tool in config.tools.values()):
        pools = config.all_pools()
        sharing = [TOOL_POOL, *map(tool_pool, config.tools)]
        places = sum(pools[name].lanes + config.zombies_of(name) for name in sharing)
        gauges.append((EXCLUSIVE, _at_once(places)))
        alone = {tool_pool(pattern) for pattern, tool in config.tools.items() if tool.exclusive}
        for name in sharing:
            of_pool[name] = (*of_pool.get(name, ()), (len(gauges) - 1, places if name in alone else 1))
    together = [name for name, held in of_pool.items() if held]
    if len(together) > MOST_TOGETHER:
        allowed = f"at most {MOST_TOGETHER} tools with conflicts, or with an exclusive one beside them"
        raise ConfigError("tools", len(together), allowed)
    return ToolLimits(tuple(gauges), {name: held for name, held in of_pool.items() if held})


def pool_of_tool(config: Config, tool: str) -> str | None:
    """The pool of a tool that is listed, by the first pattern that matches; None: it is not."""
    for pattern in config.tools:
        if fnmatchcase(tool, pattern):
            return tool_pool(pattern)
    return None


def _room(config: Config, group: str) -> int:
    listed = config.conflict_groups.get(group)
    return 1 if listed is None else listed.concurrent


def _at_once(calls: int) -> Limit:
    return Limit(requests=calls, shape="gauge")
