"""What a provider's refusals do to the calls that come next.

A refusal with a hint closes the scope that the provider named until then, with jitter; one without closes it for a
while that doubles while refusals go on. Both also slow the scope down, once a round trip (csrc/arm_scope.c says by how
much; each success takes some of it back), so that those who waited do not come back on one beat. What no wait can help
(quota, authentication) closes the scope or account for a minute at least, longer each time: then calls are let through
again, and the first refusal closes it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.errors import ConfigError, ScopeClosed
from agentrm.limits.provider_errors import ProviderError, read_error

if TYPE_CHECKING:
    from agentrm.limits.headers import HeaderLimits
    from agentrm.scheduling.gate import Gate
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager
    from agentrm.scheduling.pool import PoolState
    from agentrm.scheduling.routing import Route

__all__ = ["Backoff"]

FIRST_S, LAST_S = 0.5, 30.0
SHORTEST_S = 0.1
JITTER = 0.25
FINAL_S, FINAL_LAST_S = 60.0, 600.0


@dataclass(slots=True)
class _Closed:
    since_ns: int
    until_ns: int
    for_s: float
    error: ProviderError
    where: str


class Backoff:
    """The manager's memory of what providers refused, by scope."""

    def __init__(self, rm: ResourceManager, gate: Gate) -> None:
        self._rm, self._gate = rm, gate
        self.closed: dict[int, _Closed] = {}
        """Scopes that no wait opens."""
        self._refusals: dict[int, int] = {}
        self.trouble = False
        """Whether any scope has something that a success would clear."""

    def scopes_of(self, route: Route) -> tuple[int, int]:
        """The call's model scope and that of its account, or of its pool where no account is named."""
        return route.scope, self._wide(route.pool)

    def _wide(self, pool: PoolState) -> int:
        """What stands for the whole account: its scope, or without one the pool's."""
        account, layout = pool.config.account, self._rm.layout
        return layout.scope_of_pool(pool.index) if account is None else layout.accounts.index(account)

    # --- refusals ---

    def failed(self, lease: Lease, exc: BaseException) -> ProviderError | None:
        """Reads a failure and tells the scope. None if it is not a provider's."""
        error = read_error(exc, wall=self._rm.clock.wall())
        if error is None:
            return None
        if error.headers is not None:
            self.observe(lease.route, error.headers)
        if error.kind in ("quota", "auth"):
            self._close(lease, error)
        elif error.kind == "rate" or (error.kind == "overloaded"):
            self._slow_down(lease, error)
        return error

    def _slow_down(self, lease: Lease, error: ProviderError) -> None:
        rm, route = self._rm, lease.route
        scope = self._wide(route.pool) if error.scope == "account" else route.scope
        now = rm.clock.now_ns()
        times = self._refusals.get(scope, 0)
        hint = error.retry_after_s
        if hint is None and error.headers is not None:
            hint = error.headers.exhausted_s
        pause = max(hint, SHORTEST_S) if hint is not None else min(LAST_S, FIRST_S * 2**times)
        spread = pause * JITTER * rm.random.random() if hint is None else min(pause, 1.0) * JITTER * rm.random.random()
        if lease.granted_ns >= self._last_cut(scope):
            self._refusals[scope] = min(times + 1, 16)
        rm.kernel.penalise(scope, now + int((pause + spread) * 1e9), 1 if hint is None else 2, lease.granted_ns, now)
        self.trouble = True
        self._gate.arm_at(now + int((pause + spread) * 1e9))

    def _last_cut(self, scope: int) -> int:
        return self._rm.kernel.scope_info(scope).cut_ns

    def _close(self, lease: Lease, error: ProviderError) -> None:
        rm, route = self._rm, lease.route
        scope = self._wide(route.pool) if error.scope == "account" else route.scope
        before = self.closed.get(scope)
        if before is not None and lease.granted_ns < before.since_ns:
            return  # it was under way when the scope was closed: nothing new
        for_s = FINAL_S if before is None else min(FINAL_LAST_S, before.for_s * 2)
        now = rm.clock.now_ns()
        where = f"account of pool {route.pool.name!r}" if error.scope == "account" else f"model {route.model or '*'!r}"
        closed = self.closed[scope] = _Closed(now, now + int(for_s * 1e9), for_s, error, where)
        self.trouble = True
        for waiting in list(self._gate.queued.values()):
            if self._closing_of(waiting.route) is not None and waiting is not lease:
                self._gate.refuse_waiting(waiting, self._refusal(waiting, closed))

    def _closing_of(self, route: Route) -> _Closed | None:
        for scope in self.scopes_of(route):
            found = self.closed.get(scope)
            if found is not None and found.until_ns > self._rm.clock.now_ns():
                return found
        return None

    def _refusal(self, lease: Lease, closed: _Closed) -> ScopeClosed:
        why = "its quota or credit is used up" if closed.error.kind == "quota" else "it does not accept the credentials"
        return ScopeClosed(
            f"the provider refused the {closed.where} for good: {why}. The call of agent {lease.agent!r} was not sent. "
            "Mend that at the provider, then call reopen() (or wait: one call will try again within minutes)",
            pool=lease.pool, agent=lease.agent,
        )  # fmt: skip

    def refuse_if_closed(self, lease: Lease) -> None:
        """Raises ScopeClosed for a call to a scope that is closed for good. When its time is over one call may try
        whether that is still so; the others are refused until it has an answer."""
        found = self._closing_of(lease.route)
        if found is not None:
            raise self._refusal(lease, found)
        now = self._rm.clock.now_ns()
        for scope in self.scopes_of(lease.route):
            over = self.closed.get(scope)
            if over is not None:
                over.until_ns = now + int(over.for_s * 1e9)

    def opens_in_s(self, lease: Lease) -> float:
        """Seconds until the scopes of the call are open, 0 if they are."""
        now = self._rm.clock.now_ns()
        until = max(self._rm.kernel.scope_info(s).closed_until_ns for s in self.scopes_of(lease.route))
        return max(0.0, (until - now) / 1e9)

    # --- good news ---

    def succeeded(self, lease: Lease) -> None:
        """A call went through: its scopes work again."""
        for scope in self.scopes_of(lease.route):
            self._refusals.pop(scope, None)
            self.closed.pop(scope, None)
        self.trouble = bool(self._refusals or self.closed)

    def reopen(self, pool: str | None) -> None:
        rm = self._rm
        if pool is not None and pool not in rm.pools:
            raise ConfigError("pool", pool, "one of " + ", ".join(rm.pools))
        for name in [pool] if pool is not None else rm.pools:
            state, count = rm.pools[name], rm.kernel.scope_count()
            of_models = [s for s in range(count) if rm.kernel.scope_info(s).pool == state.index]
            for scope in (*of_models, self._wide(state)):
                self.closed.pop(scope, None)
                self._refusals.pop(scope, None)
                rm.kernel.reopen(scope, rm.clock.now_ns())

    def observe(self, route: Route, headers: HeaderLimits) -> None:
        """Lowers what is left of the pool's limits to what the provider says is left of its own. Never raises it: what
        is reserved here the provider may not have seen yet, and a limit set lower than the provider's stays so."""
        rm = self._rm
        left = {"requests": headers.requests.remaining, "tokens": headers.tokens.remaining}
        for index in route.pool.limits:
            limit = rm.layout.limits[index][1]
            remaining = left.get(limit.resource)
            now = rm.clock.now_ns()
            if remaining is None or limit.per is None or limit.per < 1:
                continue
            if remaining < rm.kernel.limit_info(index, now).level:
                rm.kernel.correct(index, int(remaining), now)
