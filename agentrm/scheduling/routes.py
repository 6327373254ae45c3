"""The routes of one manager: who asks and for what, looked up once and known from then on as the kernel's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrm.errors import ConfigError, KernelError
from agentrm.identity import PRIORITIES
from agentrm.scheduling.pool import OTHERS, PoolState
from agentrm.scheduling.routing import KINDS, Route, pool_for

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Routes"]

MOST_ROUTES = 50_000


class Routes:
    """See the module. Tables are bounded: a full one is emptied, and what is asked for again is looked up again."""

    def __init__(self, rm: ResourceManager) -> None:
        self._rm = rm
        self.known: dict[tuple[Any, ...], Route] = {}
        self._tool_pools: dict[tuple[str, str | None, str], str] = {}
        self._tenants = {OTHERS: rm.kernel.tenant(OTHERS, rm.config.weight_of(OTHERS))}

    def pool_of_tool(self, kind: str, pool: str | None, tool: str) -> str:
        """The pool of a call of that tool."""
        key = kind, pool, tool
        found = self._tool_pools.get(key)
        if found is None:
            if not isinstance(tool, str):
                raise ConfigError("tool", tool, "a name (text)")
            if len(self._tool_pools) >= MOST_ROUTES:
                self._tool_pools.clear()
            found = self._tool_pools[key] = pool_for(self._rm.config, kind, pool, None, tool)
        return found

    def make(self, key: tuple[Any, ...], who: Any, parent: Lease | None) -> Route:
        """The route of `key`, as `ResourceManager.lease` puts it together, now known. Raises ConfigError."""
        agent, priority, tenant, kind, pool, model, _, _ = key
        agent = agent or who.agent or "default"
        tenant = tenant or who.tenant or (parent.tenant if parent is not None else "default")
        priority = priority or who.priority or ("interactive" if parent is None else "subagent")
        for name, value in (("agent", agent), ("tenant", tenant), ("kind", kind), ("pool", pool), ("model", model)):
            if not isinstance(value, str) and (value is not None or name in ("agent", "tenant", "kind")):
                raise ConfigError(name, value, "a name (text)")
        if priority not in PRIORITIES:
            raise ConfigError("priority", priority, ", ".join(PRIORITIES))
        if kind not in KINDS and kind not in self._rm.pools:
            raise ConfigError("kind", kind, ", ".join(KINDS) + ", or the name of a pool")
        state = self._rm.pools[pool_for(self._rm.config, kind, pool, model)]
        handle = self._rm.kernel.agent(agent, self._tenant(tenant))
        scope = self.scope_of(state, model)
        who_bits = state.index | PRIORITIES.index(priority) << 10 | handle << 16 | scope << 40
        route = Route(who_bits, state, scope, agent, tenant, priority, kind, model, state.share_of(tenant))
        if len(self.known) >= MOST_ROUTES:
            self.known.clear()
        self.known[key] = route
        return route

    def renew(self, route: Route) -> Route:
        """The same route after the kernel gave its agent's slot to another name."""
        self.known.clear()
        number = self._tenant(route.tenant)
        who = route.who & ~(0xFFFFFF << 16) & ~(0xFF << 52)
        return replace(route, who=who | self._rm.kernel.agent(route.agent, number) << 16)

    def _tenant(self, name: str) -> int:
        number = self._tenants.get(name)
        if number is None:
            try:
                number = self._tenants[name] = self._rm.kernel.tenant(name, self._rm.config.weight_of(name))
            except KernelError:  # more tenants than the kernel can tell apart: the rest share a place
                number = self._tenants[OTHERS]
        return number

    def scope_of(self, state: PoolState, model: str | None) -> int:
        """The kernel's number of a model's scope in a pool (None: the pool's own scope)."""
        try:
            return self._rm.kernel.scope(f"{state.name}/{model or '*'}", state.index)
        except KernelError:  # more models than scopes: the rest share the pool's
            return self._rm.layout.scope_of_pool(state.index)
