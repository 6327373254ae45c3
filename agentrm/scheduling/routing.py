"""From the configuration to the kernel: which pools, limits and scopes there are, and where a call belongs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentrm.config import DEFAULT_POOL, ENVIRONMENT_POOL, TOOL_POOL
from agentrm.core import codes
from agentrm.core.kernel import KernelConfig
from agentrm.core.kernel import Limit as KernelLimit
from agentrm.core.kernel import Pool as KernelPool
from agentrm.errors import ConfigError
from agentrm.scheduling.toolpools import pool_of_tool, tool_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrm.config import Config, Limit
    from agentrm.scheduling.pool import PoolState, Share

NOMINAL_TOKENS_PER_LANE_S = 50
"""What a lane is taken to process where no token limit says what tokens are worth (fairness only)."""
MOST_TICKETS = 4_000_000
MOST_SHARING, MOST_POOLS = 64, 1000
KINDS = ("model", "tool", "memory", "storage", "environment")
"""The kinds of calls there are; a kind of one's own is named by a pool of that name."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The kernel's set-up and the names of what it numbers."""

    kernel: KernelConfig
    pools: tuple[str, ...]
    accounts: tuple[str, ...]
    limits: tuple[tuple[str, Limit], ...]
    """(dotted key, limit) by the kernel's index."""
    of_pool: dict[str, tuple[int, ...]]

    @property
    def wide_scopes(self) -> tuple[str, ...]:
        """Names of what a refusal may close as a whole, in the kernel's order: the accounts, then each pool, which
        stands for the account of one that names none."""
        return tuple(f"account {x}" for x in self.accounts) + tuple(f"pool {x}" for x in self.pools)

    def scope_of_pool(self, index: int) -> int:
        """The kernel's number of the scope of a whole pool."""
        return len(self.accounts) + index

    def most_tokens(self, pool: str) -> int | None:
        """What the token limits of a pool can give at once, None without any."""
        limits = (self.limits[i][1] for i in self.of_pool[pool])
        return min((x.capacity for x in limits if x.resource == "tokens"), default=None)


@dataclass(frozen=True, slots=True)
class Route:
    """Where one kind of call of one agent goes; made once and used for every such call."""

    who: int
    pool: PoolState
    scope: int
    agent: str
    tenant: str
    priority: str
    kind: str
    model: str | None
    share: Share


def _costs(limits: tuple[Limit, ...], lanes: int) -> tuple[int, int]:
    """What a request costs in microseconds of the whole pool, and a token in 1/256 of one."""
    requests = [x.per * 1e6 / x.amount for x in limits if x.resource == "requests" and x.per]
    tokens = [x.per * 1e6 / x.amount for x in limits if x.resource == "tokens" and x.per]
    per_token = max(tokens) if tokens else 1e6 / (NOMINAL_TOKENS_PER_LANE_S * lanes)
    return round(max(requests, default=0)), max(1, round(per_token * 256))


def layout(config: Config, *, policy_name: Callable[[str], str]) -> Layout:
    """Numbers everything. Pools with one account form one domain: they compete for its limits in one order."""
    limits: list[tuple[str, Limit]] = []
    of_account: dict[str, tuple[int, ...]] = {}
    accounts = tuple(config.accounts)
    for name, account in config.accounts.items():
        of_account[name] = tuple(range(len(limits), len(limits) + len(account.limits)))
        limits += [(f"accounts.{name}.limits[{i}]", x) for i, x in enumerate(account.limits)]
    for name in accounts:
        sharing = sum(pool.account == name for pool in config.pools.values())
        if sharing > MOST_SHARING:
            raise ConfigError(f"accounts.{name}", sharing, f"at most {MOST_SHARING} pools that name it")
    all_pools = config.all_pools()
    if len(accounts) + len(all_pools) > MOST_POOLS:
        raise ConfigError("pools", len(all_pools), f"at most {MOST_POOLS} pools, accounts and tools")
    pools: list[KernelPool] = []
    of_pool: dict[str, tuple[int, ...]] = {}
    tools = tool_limits(config)
    first_gauge = len(limits)
    limits += tools.gauges
    for number, (name, pool) in enumerate(all_pools.items()):
        own = tuple(range(len(limits), len(limits) + len(pool.limits)))
        limits += [(f"pools.{name}.limits[{i}]", x) for i, x in enumerate(pool.limits)]
        gauges = tools.of_pool.get(name, ())
        of_pool[name] = own + of_account.get(pool.account or "", ()) + tuple(first_gauge + i for i, _ in gauges)
        if len(of_pool[name]) > codes.MAX_LIMITS:
            allowed = f"at most {codes.MAX_LIMITS} limits, those of its account and for exclusive tools included"
            raise ConfigError(f"pools.{name}.limits", len(of_pool[name]), allowed)
        request_cost, token_cost = _costs(config.limits_of(name), pool.lanes)
        wide = accounts.index(pool.account) if pool.account is not None else len(accounts) + number
        if name == TOOL_POOL:
            tool_domain = wide
        pools.append(
            KernelPool(
                lanes=pool.lanes,
                limits=of_pool[name],
                zombies=config.zombies_of(name),
                max_queued=config.waiting.max_queued,
                policy=policy_name(config.scheduling.policy),
                oversize_debt=pool.oversize == "debt",
                domain=tool_domain if gauges else wide,
                account_scope=wide,
                request_cost_us=request_cost,
                token_cost_q8=token_cost,
                takes=(0,) * (len(of_pool[name]) - len(gauges)) + tuple(places for _, places in gauges),
            )
        )
    wanted = sum(p.lanes + p.zombies + min(p.max_queued, MOST_TICKETS) for p in pools) + 64
    kernel = KernelConfig(
        limits=tuple(
            KernelLimit(x.resource, x.counting, x.amount, x.per or 0.0, x.burst or 0) for _, x in limits
        ),
        pools=tuple(pools),
        tickets=min(wanted, MOST_TICKETS),
        agents=min(max(16_384, wanted), 1_000_000),
        tenants=4_096,
        scopes=max(256, 4 * len(pools)),
        backfill_passes=config.waiting.backfill.passes,
        backfill_s=config.waiting.backfill.max_s,
        boost_s=config.scheduling.boost_s,
        quanta_s=_three(config.scheduling.quanta_s),
        quanta_tokens=_three(config.scheduling.quanta_tokens),
        owners=1,
    )
    return Layout(kernel, tuple(all_pools), accounts, tuple(limits), of_pool)


def _three(values: tuple[float, ...]) -> tuple[float, float, float]:
    a, b, c = values
    return a, b, c


def pool_for(config: Config, kind: str, pool: str | None, model: str | None, tool: str | None = None) -> str:
    """Explicit pool, else that of the tool, else the first whose patterns match the model, else `default` (`tools` for
    tools). A listed tool of which somebody says no more than that it is one of the tools goes to its own pool."""
    if tool is not None and kind == "tool" and pool in (None, TOOL_POOL):
        own = pool_of_tool(config, tool)
        if own is not None:
            return own
    if pool is not None:
        if pool not in (known := config.all_pools()):
            raise ConfigError("pool", pool, "one of " + ", ".join(known))
        return pool
    if model is not None:
        for name, candidate in config.pools.items():
            if any(fnmatchcase(model, pattern) for pattern in candidate.models):
                return name
    if kind == "environment" and config.environments.kinds:
        return ENVIRONMENT_POOL
    if kind != "model" and kind in config.pools:
        return kind
    return TOOL_POOL if kind == "tool" else DEFAULT_POOL
