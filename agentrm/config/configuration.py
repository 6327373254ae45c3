"""The whole configuration of a manager: its sections, and the rules that hold between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentrm.config.gateway import Gateway
from agentrm.config.prices import Price
from agentrm.config.readers import Reader, did_you_mean, named
from agentrm.config.schema import Section, Setting, key, section, settings
from agentrm.config.sections import (
    BUDGETED,
    PATTERN,
    Account,
    Budget,
    Context,
    Limit,
    Pool,
    Reaper,
    Scheduling,
    Tenant,
    Waiting,
)
from agentrm.config.tools import ConflictGroup, Environments, Tool
from agentrm.errors import ConfigError

DEFAULT_POOL = "default"
"""The pool of model calls that no other pool's patterns match."""

TOOL_POOL = "tools"
"""The pool of tool calls that name no other."""

TOOL_LANES = 16

ENVIRONMENT_POOL = "environments"
"""The pool in which environments are prepared."""

DEFAULT_TENANT = "default"

MOST_LIMITS = 6
"""Limits that one call can be held to, those of its pool and of the pool's account together."""


def _pools() -> Reader[Mapping[str, Pool]]:
    """Pools by name, in the order given, and behind them whichever of the two standing pools is not among
    them."""
    plain = named(section(Pool))

    def read(value: object, path: str) -> Mapping[str, Pool]:
        if not isinstance(value, Mapping):
            return plain.read(value, path)
        given = dict(value)
        given.setdefault(DEFAULT_POOL, None)
        tools = given.setdefault(TOOL_POOL, None)
        if tools is None or isinstance(tools, Mapping):
            said = {name: setting for name, setting in (tools or {}).items() if setting is not None}
            given[TOOL_POOL] = {"lanes": TOOL_LANES, **said}
        return plain.read(given, path)

    return Reader(plain.allowed, read)


POOLS = _pools()


def tool_pool(pattern: str) -> str:
    """The pool of the tools that match `pattern`, which `tools` lists."""
    return f"{TOOL_POOL}.{pattern}"


def _empty() -> Mapping[str, object]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Config(Section):
    """A checked configuration. Made by `load`, which refuses what can't work; it can't be changed
    afterwards."""

    accounts: Mapping[str, Account] = key(
        named(section(Account)), _empty, "Limits that pools share, by name."
    )
    pools: Mapping[str, Pool] = key(
        POOLS,
        lambda: POOLS.read({}, "pools"),
        "Pools by name. `default`, for model calls that no pattern matches, and `tools` exist without being "
        "listed.",
    )
    tenants: Mapping[str, Tenant] = key(named(section(Tenant)), _empty, "Shares of tenants, by name.")
    scheduling: Scheduling = key(section(Scheduling), Scheduling, "The order in which waiting calls run.")
    waiting: Waiting = key(section(Waiting), Waiting, "Bounds of the queue.")
    reaper: Reaper = key(section(Reaper), Reaper, "When a running call is taken to hang.")
    budgets: Mapping[str, Budget] = key(
        named(section(Budget), BUDGETED),
        _empty,
        "Budgets by what they bind: `tenant.NAME`, `session.NAME`, `agent.NAME`.",
    )
    prices: Mapping[str, Price] = key(
        named(section(Price), PATTERN),
        _empty,
        "Prices by patterns of model names. A model without one is refused where a budget of money binds it.",
    )
    context: Context = key(section(Context), Context, "When contexts are compacted, and where they are kept.")
    gateway: Gateway = key(section(Gateway), Gateway, "The server in front of engines (`agentrm serve`).")
    tools: Mapping[str, Tool] = key(
        named(section(Tool), PATTERN), _empty, "How tools run beside each other, by patterns of tool names."
    )
    conflict_groups: Mapping[str, ConflictGroup] = key(
        named(section(ConflictGroup)), _empty, "Conflict groups that more than one call may be in, by name."
    )
    environments: Environments = key(section(Environments), Environments, "Where programs run their tools.")

    def check(self, key: str) -> None:
        for name, pool in self.pools.items():
            if pool.account is None:
                continue
            if pool.account not in self.accounts:
                names = ", ".join(self.accounts) or "none, since no account is configured"
                near = did_you_mean(pool.account, self.accounts)
                raise ConfigError(
                    f"pools.{name}.account", pool.account, f"one of the accounts: {names}{near}"
                )
        for name in self.pools:
            if (count := len(self.limits_of(name))) > MOST_LIMITS:
                raise ConfigError(
                    f"pools.{name}.limits",
                    f"{count} limits",
                    f"at most {MOST_LIMITS}, those of the account included",
                )

        named = {group for tool in self.tools.values() for group in tool.conflicts}
        for group in self.conflict_groups:
            if group not in named:
                near = did_you_mean(group, named)
                raise ConfigError(f"conflict_groups.{group}", group, f"a group that one of the tools names{near}")
        for pattern in self.tools:
            if (name := tool_pool(pattern)) in self.pools:
                raise ConfigError(f"pools.{name}", name, f"another name: tools.{pattern} has that pool")
        if self.environments.kinds and ENVIRONMENT_POOL in self.pools:
            allowed = "another name: environments.preparing is that pool"
            raise ConfigError(f"pools.{ENVIRONMENT_POOL}", ENVIRONMENT_POOL, allowed)

    def all_pools(self) -> dict[str, Pool]:
        """The pools of the configuration, then those that other sections stand for: one for each tool that is listed,
        and one for the preparation of environments."""
        pools = dict(self.pools)
        for pattern, tool in self.tools.items():
            lanes = 1 if tool.exclusive else tool.concurrent or self.pools[TOOL_POOL].lanes
            pools[tool_pool(pattern)] = Pool(lanes=lanes)
        if self.environments.kinds:
            pools[ENVIRONMENT_POOL] = Pool(lanes=self.environments.preparing)
        return pools

    def limits_of(self, pool: str) -> tuple[Limit, ...]:
        """All limits that a call of `pool` is held to: the pool's own, then its account's."""
        chosen = self.all_pools()[pool]
        shared = self.accounts[chosen.account].limits if chosen.account is not None else ()
        return (*chosen.limits, *shared)

    def zombies_of(self, pool: str) -> int:
        """How many reaped calls of `pool` may still be at work while their lane serves others."""
        chosen = self.all_pools()[pool]
        bound = self.reaper.zombies if chosen.zombies is None else chosen.zombies
        return bound if isinstance(bound, int) else chosen.lanes

    def weight_of(self, tenant: str) -> float:
        """The tenant's weight; a tenant that is not listed never weighs more than one that is, unless it is
        said."""
        listed = self.tenants.get(tenant) or self.tenants.get(DEFAULT_TENANT)
        if listed is not None:
            return listed.weight
        return min((1.0, *(other.weight for other in self.tenants.values())))

    def explain(self) -> list[Setting]:
        """Every setting as (dotted key, value, whether it is the default), in the order of the
        documentation."""
        standing = (f"pools.{TOOL_POOL}.lanes", TOOL_LANES)
        return [
            one._replace(is_default=one.is_default or (one.key, one.value) == standing)
            for one in settings(self)
        ]


CONFIG = section(Config)
