"""The resource manager: one per process, shared by all of its agents, threads and event loops."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from agentrm.access import ask
from agentrm.cancellation import current_scope
from agentrm.clock import Clock, MonotonicClock
from agentrm.core.kernel import Kernel
from agentrm.errors import ConfigError
from agentrm.identity import Priority, in_force
from agentrm.scheduling import refusals
from agentrm.scheduling.gate import Gate
from agentrm.scheduling.guard import current
from agentrm.scheduling.lease import MOST_TOKENS, Lease
from agentrm.scheduling.policies import kernel_policy
from agentrm.scheduling.pool import PoolState
from agentrm.scheduling.routes import Routes
from agentrm.scheduling.routing import Layout, layout
from agentrm.scheduling.states import REAPED, RUNNING

if TYPE_CHECKING:
    import os

    from agentrm.access import Authorise
    from agentrm.config import Config
    from agentrm.limits.guards import Guards
    from agentrm.limits.headers import HeaderLimits
    from agentrm.limits.prices import PriceTable
    from agentrm.programs.current import CurrentProgram
    from agentrm.scheduling.closing import CloseReport
    from agentrm.scheduling.events import Event, Subscription
    from agentrm.scheduling.jobs import Job
    from agentrm.scheduling.pressure import Pressure
    from agentrm.scheduling.report import Snapshot, Statistics
    from agentrm.tools import Environments

__all__ = ["ResourceManager"]

AUTO: Any = object()
MOST_MEMORY = 1 << 46


class ResourceManager:
    """Owns what agents share: lanes, rates, budgets of waiting and running time.

    Guarantees: never more calls than lanes run in a pool (plus bounded zombies); no limit admits more than it states,
    by what calls were expected to use (what they used beyond that is taken from those that come next); every way out
    of a call frees its lane and wakes the next caller; a caller waits in the order of its level, then fair share, then
    arrival. Works from many threads and event loops at once. After `fork` every use raises `ForkedError`: make a new
    manager in the child.

    The sections are those of the configuration (docs/configuration.md), as plain mappings. `authorise` is asked about
    each call, of whichever kind, before it is queued (`agentrm.access`; default: all are allowed). `clock` and `seed`
    are for tests and simulations.

    Raises ConfigError for a configuration that cannot work.
    """

    def __init__(
        self,
        *,
        name: str = "default",
        clock: Clock | None = None,
        seed: int | None = None,
        authorise: Authorise | None = None,
        **sections: Mapping[str, Any] | None,
    ) -> None:
        from agentrm.config import load

        given = {key: value for key, value in sections.items() if value is not None}
        self._start(load(given), name, clock, seed, authorise)

    @classmethod
    def from_config(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | Config,
        *,
        name: str = "default",
        clock: Clock | None = None,
        seed: int | None = None,
        authorise: Authorise | None = None,
    ) -> ResourceManager:
        """A manager from a YAML file, a mapping or a checked `Config`."""
        from agentrm.config import Config, load

        self = cls.__new__(cls)
        self._start(source if isinstance(source, Config) else load(source), name, clock, seed, authorise)
        return self

    def _start(
        self, config: Config, name: str, clock: Clock | None, seed: int | None, authorise: Authorise | None
    ) -> None:
        self.name, self.config, self._authorise = name, config, authorise
        self.clock: Clock = clock or MonotonicClock()
        self.random = random.Random(seed)
        self.layout: Layout = layout(config, policy_name=kernel_policy)
        self.kernel = Kernel(self.layout.kernel)
        for scope in self.layout.wide_scopes:  # these come first: the pools name them by number
            self.kernel.scope(scope)
        self.routes = Routes(self)
        pools = config.all_pools()
        self.pools = {
            pool: PoolState(
                pool, i, pools[pool], config.reaper, self.layout.of_pool[pool], self.layout.most_tokens(pool)
            )
            for i, pool in enumerate(self.layout.pools)
        }
        self.jobs: dict[str, Job] = {}
        self.gate = Gate(self)
        self._prices: PriceTable | None = None
        self._environments: Environments | None = None
        self._once = threading.Lock()
        self.priced = bool(config.budgets or config.prices)
        """Whether the use of calls is kept by kind of token, for budgets and costs."""
        if config.budgets:
            from agentrm.scheduling.budgets import Budgets

            self.gate.budgets = Budgets(self)

    # --- leases ---

    def lease(
        self,
        *,
        agent: str | None = None,
        priority: Priority | None = None,
        tenant: str | None = None,
        session: str | None = None,
        kind: str = "model",
        pool: str | None = None,
        model: str | None = None,
        tool: str | None = None,
        tokens: int | None = None,
        input_tokens: int | None = None,
        max_output_tokens: int | None = None,
        memory: int = 0,
        wait_max: float | None = None,
        idle_s: float | None = None,
        run_s: float | None = None,
        parent: Lease | None = AUTO,
        on_reap: Callable[[Lease, Any], object] | None = None,
        resumed: bool = False,
        streams: bool = False,
    ) -> Lease:
        """A lease to be acquired by `with`, `async with` or `acquire`.

        `agent`, `priority`, `tenant`, `session`: who asks; unset ones come from `agentrm.identity`, then defaults
        (agent and tenant `default`; priority `interactive`, below another lease `subagent`).
        `kind`: model, tool, memory, storage, environment, or the name of a pool; with `pool` and `model` it decides
        which pool serves the call.
        `tokens`: expected total, reserved at admission; or `input_tokens` and `max_output_tokens`. `memory` in bytes.
        `wait_max`: seconds in the queue before QueueTimeout (default `waiting.max_s`).
        `idle_s`, `run_s`: seconds without progress and in all; None: the configured limits; `inf`: none.
        `parent`: the enclosing lease; found by itself unless context variables are lost on the way.
        `on_reap(lease, error)`: called once if the lease is taken away.
        `streams`: the call will show progress with `heartbeat` at each chunk, so that a hang is found much sooner.
        `resumed`: the call was interrupted by the manager or a provider and goes ahead of calls that never ran.
        """
        beyond = None
        if parent is AUTO:
            parent = current.get()
            if parent is not None and parent._rm is not self:
                beyond, parent = parent, parent._within(self)
            if parent is not None and parent.state != RUNNING:
                self._stale(parent)
                parent = None
        elif parent is not None and parent._rm is not self:
            raise ConfigError("parent", parent, "a lease of this manager, or None")
        elif parent is not None and parent.state == REAPED:
            self._stale(parent)
            parent = None
        who = in_force.get()
        if tool is not None and self.config.tools:
            pool = self.routes.pool_of_tool(kind, pool, tool)
        key = (agent, priority, tenant, kind, pool, model, who, parent is None)
        route = self.routes.known.get(key)
        if route is None:
            route = self.routes.make(key, who, parent)
        stated = tokens
        if tokens is None:
            if input_tokens is None and max_output_tokens is None:
                tokens = route.pool.usual_tokens()
            else:
                tokens = _whole("input_tokens", input_tokens or 0)
                if max_output_tokens:
                    tokens += _whole("max_output_tokens", max_output_tokens)
        if type(tokens) is not int or not 0 <= tokens <= MOST_TOKENS:
            raise ConfigError("tokens", tokens, f"a whole number from 0 to {MOST_TOKENS}")
        lease = Lease(self, route, parent, tokens)
        if self.gate.budgets is not None or input_tokens is not None:
            lease._stated = stated, input_tokens
        if max_output_tokens is not None:
            lease._max_output = max_output_tokens
        if input_tokens is not None:
            lease._input = _whole("input_tokens", input_tokens)
        if wait_max is not None or idle_s is not None or run_s is not None:
            lease._wait_max = _seconds("wait_max", wait_max, zero=True)
            lease._idle_s, lease._run_s = _seconds("idle_s", idle_s), _seconds("run_s", run_s)
        if memory:
            lease._memory = _whole("memory", memory, MOST_MEMORY)
        if on_reap is not None:
            lease._on_reap = on_reap
        if resumed:
            lease.resumed = True
        if streams:
            lease.streams = True
        if session or who.session:
            lease.session = session or who.session
            if not isinstance(lease.session, str):
                raise ConfigError("session", session, "a name (text)")
        if tool is not None:
            lease.tool = tool
        if self._authorise is not None:
            ask(self._authorise, lease)
        work = current_scope.get()
        if work is not None:
            lease._cancellable = work
        if beyond is not None and beyond.state == RUNNING:
            lease._beyond = beyond
        return lease

    def _stale(self, parent: Lease) -> None:
        """A lease that is over encloses nothing. Raises its error where it is a zombie and zombies keep lanes: its work
        would wait for the lane that it keeps itself."""
        if current.get() is parent:  # or a block that was never left would keep it for ever
            current.set(None)
        if parent.state == REAPED:
            info = self.kernel.pool_info(parent.route.pool.index)
            if info.dead > info.zombies:
                raise refusals.of_zombie(parent)

    def try_lease(self, **asked: Any) -> Lease | None:
        """A running lease if one is to be had without waiting, else None. Arguments as for `lease`."""
        lease = self.lease(**asked)
        return lease if self.gate.submit(lease, only_try=True) else None

    def job(self, name: str) -> Job:
        """The recurring job of that name, made when new: one of its firings runs and one waits at most."""
        from agentrm.scheduling.jobs import Job

        job = self.jobs.get(name)
        return job if job is not None else self.jobs.setdefault(name, Job(name))

    # --- looking ---

    def statistics(self) -> Statistics:
        """Counters and levels of every pool, limit and scope."""
        from agentrm.scheduling.report import statistics

        return statistics(self)

    def snapshot(self) -> Snapshot:
        """Who holds a lane and who waits, for how long."""
        from agentrm.scheduling.report import snapshot

        return snapshot(self)

    def pressure(self) -> Pressure:
        """Shares of time in which callers waited for lanes, rate or context, over 10, 60 and 300 s."""
        return self.gate.pressure.read()

    def report_context(self, session: str, used: int | None, window: int) -> None:
        """Feeds the pressure of context: a session's context has `used` of `window` tokens now (None: it ended)."""
        self.gate.pressure.context(session, None if used is None else used >= self.config.context.high * window)

    def events(self, start: int | None = None) -> Iterator[Event]:
        """Iterator over the transitions since event number `start` (default: all that the ring still has) up to now."""
        from agentrm.scheduling.events import read

        return read(self, start)

    def subscribe(self, callback: Callable[[Event], object]) -> Subscription:
        """Calls `callback(event)` for every transition from now on, in the thread that caused it. Returns a handle with
        `close()` and `lost`, the number of events that were overwritten before they could be delivered."""
        from agentrm.scheduling.events import Subscription

        return Subscription(self, callback)

    # --- providers ---

    def observe_headers(self, lease: Lease, headers: HeaderLimits) -> None:
        """Lets a provider's own account of what is left correct the limits of the call's pool."""
        self.gate.backoff.observe(lease.route, headers)

    @property
    def prices(self) -> PriceTable:
        """What models cost: the configuration's `prices`, and what `prices.set` stated since."""
        if self._prices is None:
            from agentrm.limits.prices import PriceTable

            self._prices, self.priced = PriceTable(self.config.prices, self.clock), True
        return self._prices

    def affords(self, **asked: Any) -> bool:
        """Whether the budgets have room for a call now. Nothing is reserved. Arguments as for `lease`."""
        return self.gate.budgets is None or self.gate.budgets.affords(self.lease(**asked))

    def guard(self, **limits: Any) -> Guards:
        """Guards for one task and the agents that it starts, against circles, swarms and endless steps. Arguments as
        for `agentrm.limits.guards.Guards`."""
        from agentrm.limits.guards import Guards

        return Guards(self, **limits)

    def reopen(self, pool: str | None = None) -> None:
        """Forgets refusals and slow-downs of the pool's scopes and account (all pools without a name)."""
        self.gate.backoff.reopen(pool)
        self.gate.tick()

    def attach(self, x: Any, **identity: Any) -> Any:
        """The gated equivalent of a model, client, tool, team or crew of any framework with an installed adapter."""
        from agentrm.adapters import attach

        return attach(self, x, **identity)

    @property
    def environments(self) -> Environments:
        """The environments in which programs run their tools (docs/tools.md). Raises ConfigError unless the
        configuration has kinds of them."""
        if self._environments is None:
            from agentrm.tools import Environments

            with self._once:
                if self._environments is None:
                    self._environments = Environments(self)
        return self._environments

    def program(self, id: str) -> CurrentProgram:
        """Calls made inside the block belong to this program (docs/programs.md); leaving it ends it and releases
        the environments of its tools."""
        from agentrm.programs.current import CurrentProgram

        return CurrentProgram(id, self._program_ended)

    def _program_ended(self, id: str) -> None:
        if self._environments is not None:
            self._environments.end(id)

    # --- end ---

    def close(self, timeout: float | None = 0.0) -> CloseReport:
        """Refuses new work, fails what waits with ManagerClosed, lets running work end within `timeout` seconds (None:
        as long as it takes) and reports what it left. Blocks this thread; `aclose` does not. Then removes the tool
        environments; raises EnvironmentLeft if one can't be removed."""
        from agentrm.scheduling.closing import close

        report = close(self, timeout)
        if self._environments is not None:
            self._environments.close()
        return report

    async def aclose(self, timeout: float | None = 0.0) -> CloseReport:
        """`close` without blocking the loop."""
        from agentrm.scheduling.closing import aclose

        report = await aclose(self, timeout)
        if self._environments is not None:
            await self._environments.close_async()
        return report

    def __enter__(self) -> ResourceManager:
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        self.close()
        return False

    def __repr__(self) -> str:
        running, waiting = len(self.gate.leases), len(self.gate.queued)
        return f"<ResourceManager {self.name!r}: {running} running, {waiting} waiting>"


def _whole(key: str, value: Any, most: int = MOST_TOKENS) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ConfigError(key, value, f"a whole number from 0 to {most}")
    return value


def _seconds(key: str, value: float | None, *, zero: bool = False) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or (value == 0 and not zero):
        raise ConfigError(key, value, f"seconds, a number {'from' if zero else 'above'} 0")
    return float(value)
