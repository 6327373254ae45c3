"""The resource manager: one per process, shared by all of its agents, threads and event loops."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from agentrm.clock import Clock, MonotonicClock, Timer
from agentrm.core._agentrm_core import lib
from agentrm.core.kernel import Kernel, Port
from agentrm.errors import (
    AdmissionError,
    ConfigError,
    KernelError,
    ManagerClosed,
    QueueFull,
    QueueTimeout,
    RequestTooLarge,
)
from agentrm.identity import PRIORITIES, Priority, _identity
from agentrm.scheduling.lease import DONE, ENDED, FAILED, NEW, REAPED, REFUND, RUNNING, WAITING, Lease, _current
from agentrm.scheduling.pool import PoolState
from agentrm.scheduling.routing import Layout, Route, layout, pool_for
from agentrm.scheduling.waiters import Batch, Waiter

if TYPE_CHECKING:
    import os

    from agentrm.config import Config
    from agentrm.limits.headers import HeaderLimits
    from agentrm.limits.provider_errors import ProviderError
    from agentrm.scheduling.closing import CloseReport
    from agentrm.scheduling.events import Subscription
    from agentrm.scheduling.report import Snapshot, Statistics

__all__ = ["ResourceManager"]

AUTO: Any = object()
_E_FULL, _E_TOO_LARGE, _E_AGENT, _E_QUEUE = lib.ARM_E_FULL, lib.ARM_E_TOO_LARGE, lib.ARM_E_AGENT, lib.ARM_E_QUEUE
_E_STATE = lib.ARM_E_STATE
MOST_ROUTES = 50_000


class _Mark:
    """A place in the table of waiters that is not a waiter."""

    def wake(self, batch: Batch, error: BaseException | None) -> None:
        """Nobody sleeps here."""


_GRANTED, _DROPPED = _Mark(), _Mark()


class ResourceManager:
    """Owns what agents share: lanes, rates, budgets of waiting and running time.

    Guarantees: never more calls than lanes run in a pool (plus bounded zombies); no window sees more than its limit;
    every way out of a call frees its lane and wakes the next caller; a caller waits in the order of its level, then
    fair share, then arrival. Works from many threads and event loops at once. After `fork` every use raises
    `ForkedError`: make a new manager in the child.

    The sections are those of the configuration (docs/configuration.md), as plain mappings. `clock` and `seed` are for
    tests and simulations.

    Raises ConfigError for a configuration that cannot work.
    """

    def __init__(
        self,
        *,
        name: str = "default",
        clock: Clock | None = None,
        seed: int | None = None,
        **sections: Mapping[str, Any] | None,
    ) -> None:
        from agentrm.config import load

        given = {key: value for key, value in sections.items() if value is not None}
        self._start(load(given), name, clock, seed)

    @classmethod
    def from_config(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | Config,
        *,
        name: str = "default",
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> ResourceManager:
        """A manager from a YAML file, a mapping or a checked `Config`."""
        from agentrm.config import Config, load

        self = cls.__new__(cls)
        self._start(source if isinstance(source, Config) else load(source), name, clock, seed)
        return self

    def _start(self, config: Config, name: str, clock: Clock | None, seed: int | None) -> None:
        from agentrm.scheduling.backoff import Backoff
        from agentrm.scheduling.reaper import Sweeper

        self.name, self.config = name, config
        self.clock: Clock = clock or MonotonicClock()
        self.random = random.Random(seed)
        self._real = isinstance(self.clock, MonotonicClock)
        self.layout: Layout = layout(config, policy_name=lambda policy: policy)
        self.kernel = Kernel(self.layout.kernel)
        self._port = Port(self.kernel, self.layout.kernel.tickets)
        for account in self.layout.accounts:  # these come first: the pools name them by number
            self.kernel.scope(f"account {account}")
        self._tenants: dict[str, int] = {}
        self._pools = {
            pool: PoolState(pool, i, config.pools[pool], config.reaper, self.layout.of_pool[pool])
            for i, pool in enumerate(self.layout.pools)
        }
        self._routes: dict[tuple[Any, ...], Route] = {}
        self._waiters: dict[int, Waiter] = {}
        self._leases: dict[int, Lease] = {}
        self._queued: dict[int, Lease] = {}
        self._max_wait = config.waiting.max_s
        self._timer: Timer | None = None
        self._timer_lock = threading.Lock()
        self.backoff = Backoff(self)
        self._sweeper = Sweeper(self)
        self._subscriptions: list[Subscription] = []
        self._closing = False
        self._idle = threading.Event()
        self._on_idle: list[Callable[[], object]] = []

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
    ) -> Lease:
        """A lease to be acquired by `with`, `async with` or `acquire`.

        `agent`, `priority`, `tenant`, `session`: who asks; unset ones come from `agentrm.identity`, then defaults
        (agent and tenant `default`; priority `interactive`, below another lease `subagent`).
        `kind`: model, tool or another kind; with `pool` and `model` it decides which pool serves the call.
        `tokens`: expected total, reserved at admission; or `input_tokens` and `max_output_tokens`. `memory` in bytes.
        `wait_max`: seconds in the queue before QueueTimeout (default `waiting.max_s`).
        `idle_s`, `run_s`: seconds without progress and in all; None: the configured limits; `inf`: none.
        `parent`: the enclosing lease; found by itself unless context variables are lost on the way.
        `on_reap(lease, error)`: called once if the lease is taken away.
        `resumed`: the call was interrupted by the manager or a provider and goes ahead of calls that never ran.
        """
        if parent is AUTO:
            parent = _current.get()
            if parent is not None and (parent.state != RUNNING or parent._rm is not self):
                parent = None
        who = _identity.get()
        key = (agent, priority, tenant, kind, pool, model, who, parent is not None)
        route = self._routes.get(key)
        if route is None:
            route = self._route(key, who, parent)
        if tokens is None:
            if input_tokens is None and max_output_tokens is None:
                tokens = int(route.pool.mean_tokens)
            else:
                tokens = (input_tokens or 0) + (max_output_tokens or 0)
        if type(tokens) is not int or not 0 <= tokens <= 2_000_000_000:
            raise ConfigError("tokens", tokens, "a whole number from 0 to 2,000,000,000")
        lease = Lease(self, route, parent, tokens)
        if input_tokens is not None:
            lease._input = input_tokens
        if wait_max is not None or idle_s is not None or run_s is not None:
            lease._wait_max = _seconds("wait_max", wait_max, zero=True)
            lease._idle_s, lease._run_s = _seconds("idle_s", idle_s), _seconds("run_s", run_s)
        lease._memory, lease._on_reap, lease.resumed = memory, on_reap, resumed
        lease.session = session or who.session
        return lease

    def try_lease(self, **asked: Any) -> Lease | None:
        """A running lease if one is to be had without waiting, else None. Arguments as for `lease`."""
        lease = self.lease(**asked)
        if self._submit(lease, flags=lib.ARM_F_TRY):
            return lease
        return None

    def _route(self, key: tuple[Any, ...], who: Any, parent: Lease | None) -> Route:
        agent, priority, tenant, kind, pool, model, _, _ = key
        agent = agent or who.agent or "default"
        tenant = tenant or who.tenant or (parent.tenant if parent is not None else "default")
        priority = priority or who.priority or ("interactive" if parent is None else "subagent")
        if priority not in PRIORITIES:
            raise ConfigError("priority", priority, ", ".join(PRIORITIES))
        state = self._pools[pool_for(self.config, kind, pool, model)]
        number = self._tenants.get(tenant)
        if number is None:
            number = self.kernel.tenant(tenant, self.config.weight_of(tenant))
            self._tenants[tenant] = number
        handle = self.kernel.agent(agent, number)
        scope = self._scope(state, model)
        who_bits = state.index | PRIORITIES.index(priority) << 10 | handle << 16 | scope << 40
        route = Route(who_bits, state, scope, agent, tenant, priority, kind, model)
        if len(self._routes) >= MOST_ROUTES:
            self._routes.clear()
        self._routes[key] = route
        return route

    def _scope(self, state: PoolState, model: str | None) -> int:
        try:
            return self.kernel.scope(f"{state.name}/{model or '*'}", state.index)
        except KernelError:  # more models than scopes: the rest share one
            return self.kernel.scope(f"{state.name}/*", state.index)

    # --- the way into the kernel; every call of the port is followed by _deliver where it can have granted ---

    def _now(self) -> int:
        return -1 if self._real else self.clock.now_ns()

    def _submit(self, lease: Lease, flags: int = 0) -> bool:
        """True: the lane is granted. False: the lease waits and must be registered (or, with the try flag, is refused)."""
        if lease.state != NEW:
            raise AdmissionError(f"{lease!r} was used before; ask for a new lease for each call", agent=lease.agent)
        if self._closing:
            raise ManagerClosed(
                f"manager {self.name!r} is closing and takes no new call of agent {lease.agent!r}", agent=lease.agent
            )
        route, parent = lease.route, lease._parent
        if self.backoff.closed:
            self.backoff.refuse_if_closed(lease)
        state = route.pool
        now = self.clock.now_ns()
        who = route.who | flags << 12
        if lease.resumed:
            who |= lib.ARM_F_RESUMED << 12
        rc = self._port.submit(
            who,
            lease.tokens,
            now,
            state.idle_us(route.kind, lease._idle_s),
            state.run_us(lease._run_s),
            0 if parent is None else parent.handle,
            lease._memory,
        )
        if rc < 0:
            return self._refused(lease, rc, flags)
        lease.handle = rc >> 1
        lease.submitted_ns = now
        if rc & 1:
            lease.granted_ns = lease._beat_ns = now
            lease.state = RUNNING
            self._leases[lease.handle] = lease
            if not self._sweeper.active:
                self._sweeper.start()
            state.granted += 1
            if self._waiters:
                self._deliver()
            if self._subscriptions:
                self._publish()
            return True
        lease.state = WAITING
        return False

    def _refused(self, lease: Lease, rc: int, flags: int) -> bool:
        state, agent = lease.route.pool, lease.agent
        if rc == _E_AGENT:  # its slot was given to another name meanwhile
            self._routes.clear()
            fresh = self.lease(
                agent=agent, priority=lease.route.priority, tenant=lease.tenant, kind=lease.route.kind,
                pool=state.name, model=lease.route.model, tokens=lease.tokens, parent=lease._parent,
            )  # fmt: skip
            lease.route = fresh.route
            return self._submit(lease, flags)
        if rc == _E_QUEUE and flags & lib.ARM_F_TRY:
            self._deliver()
            return False
        if rc == _E_QUEUE:
            raise QueueFull(
                f"{state.name!r} holds {self.config.waiting.max_queued} waiting calls, as many as waiting.max_queued "
                f"allows; the call of agent {agent!r} was not queued. Retry later or raise the bound",
                pool=state.name, agent=agent, is_retryable=True, retry_after=1.0,
            )  # fmt: skip
        if rc == _E_TOO_LARGE:
            raise self._too_large(lease)
        if rc == _E_FULL:
            raise QueueFull(
                f"the kernel's table of {self.layout.kernel.tickets} calls is full; the call of agent {agent!r} was not "
                "queued. Retry later",
                pool=state.name, agent=agent, is_retryable=True, retry_after=1.0,
            )  # fmt: skip
        raise KernelError(f"the kernel refused the call of agent {agent!r} in {state.name!r} (code {rc})")

    def _too_large(self, lease: Lease) -> RequestTooLarge:
        for index in lease.route.pool.limits:
            key, limit = self.layout.limits[index]
            need = {"requests": 1, "tokens": lease.tokens, "memory": lease._memory}[limit.resource]
            if need > limit.capacity:
                return RequestTooLarge(
                    f"the call of agent {lease.agent!r} asks for {need} {limit.resource} and {key} never holds more than "
                    f"{limit.capacity}. Ask for less, raise the limit, or set pools.{lease.pool}.oversize to debt",
                    pool=lease.pool, agent=lease.agent,
                )  # fmt: skip
        return RequestTooLarge("the call is larger than its limits allow", pool=lease.pool, agent=lease.agent)

    def _register(self, lease: Lease, waiter: Waiter) -> bool:
        """Puts a queued lease to sleep. False: it was granted between the submit and now."""
        handle = lease.handle
        lease.route.pool.queued += 1
        self._queued[handle] = lease
        if self._waiters.setdefault(handle, waiter) is _GRANTED:
            del self._waiters[handle]
            self._granted(lease)
            return False
        wait_max = lease._wait_max if lease._wait_max is not None else self._max_wait
        if wait_max is not None:
            opens = self.backoff.opens_in_s(lease)
            if opens > wait_max:
                error = self._queue_timeout(lease, wait_max, opens)
                self._give_up(lease)
                raise error
            due = lease.submitted_ns + int(wait_max * 1e9)
            lease._timer = self.clock.call_at(due, lambda: self._expire(lease, wait_max))
        if lease.refusal is not None:  # taken out of the queue before it was registered
            self._waiters.pop(handle, None)
            raise lease.refusal
        if not self._sweeper.active:
            self._sweeper.start()
        self._deliver()
        self._arm()
        return True

    def _granted(self, lease: Lease) -> None:
        """Runs in the caller's own thread or task, once, after its lane was granted."""
        state = lease.route.pool
        self._queued.pop(lease.handle, None)
        if lease._timer is not None:
            lease._timer.cancel()
        if lease.error is not None:  # its loop was stuck for so long that the lane was taken back
            raise lease.error
        now = self.clock.now_ns()
        lease.granted_ns = lease._beat_ns = now
        lease.state = RUNNING
        self._leases[lease.handle] = lease
        if not self._sweeper.active:
            self._sweeper.start()
        state.granted += 1
        state.waited_s += (now - lease.submitted_ns) / 1e9

    def _deliver(self) -> None:
        """Wakes whoever was granted a lane by the last operations, whichever thread did them."""
        take, waiters = self._port.take, self._waiters
        handle = take()
        if not handle:
            return
        batch = Batch()
        while handle:
            waiter = waiters.setdefault(handle, _GRANTED)
            if waiter is not _GRANTED:
                del waiters[handle]
                waiter.wake(batch, None)
            handle = take()
        batch.send()
        if self._subscriptions:
            self._publish()

    def _give_up(self, lease: Lease) -> None:
        """The caller left the queue: cancelled, interrupted, expired, or its loop is closed."""
        handle = lease.handle
        self._queued.pop(handle, None)
        if lease._timer is not None:
            lease._timer.cancel()
        if lease.state != WAITING:
            self._release(lease, True)
            return
        lease.state = ENDED
        rc = self._port.cancel(handle, self._now())
        waiter = self._waiters.pop(handle, None)
        if rc == _E_STATE:  # granted at this very moment: the lane goes on to the next
            if waiter is not None and self._waiters.setdefault(handle, _DROPPED) is _GRANTED:
                del self._waiters[handle]
            self._port.settle(handle, REFUND, self._now())
            lease.route.pool.refunded += 1
        elif rc >= 0:
            lease.route.pool.cancelled += 1
        self._deliver()
        self._arm()

    def _expire(self, lease: Lease, wait_max: float) -> None:
        if lease.state == WAITING:
            self._refuse_waiting(lease, self._queue_timeout(lease, wait_max, self.backoff.opens_in_s(lease)))

    def _refuse_waiting(self, lease: Lease, error: BaseException) -> None:
        """Takes a lease out of the queue and lets its caller fail, unless it was granted meanwhile."""
        if self._port.cancel(lease.handle, self._now()) >= 0:
            lease.refusal = error
            lease.state = ENDED
            if lease._timer is not None:
                lease._timer.cancel()
            lease.route.pool.cancelled += 1
            self._queued.pop(lease.handle, None)
            waiter = self._waiters.pop(lease.handle, None)
            if waiter is not None:
                batch = Batch()
                waiter.wake(batch, error)
                batch.send()
        self._deliver()
        self._arm()

    def _queue_timeout(self, lease: Lease, wait_max: float, opens_in_s: float) -> QueueTimeout:
        when = f"; the provider's scope is usable in {opens_in_s:.3g} s" if opens_in_s else ""
        return QueueTimeout(
            f"the call of agent {lease.agent!r} may wait {wait_max:g} s in the queue of {lease.pool!r} (queue wait) and got "
            f"no lane{when}. Nothing was sent; retry, wait longer (wait_max), or add lanes",
            pool=lease.pool, agent=lease.agent, is_retryable=True, retry_after=opens_in_s or None,
        )  # fmt: skip

    # --- the way out ---

    def _release(self, lease: Lease, failed: bool) -> None:
        state = lease.state
        if state == RUNNING or state == REAPED:
            lease.state = ENDED
            used = lease._used
            if lease._refund:
                how = REFUND
            elif used is not None:
                how = (FAILED if failed else DONE) | used << 2
            else:
                how = FAILED | lease._input << 2 if failed else DONE | lease.tokens << 2
            self._end(lease, how, state)
        elif state == WAITING:
            self._give_up(lease)
        elif state == NEW:
            lease.state = ENDED

    def _end(self, lease: Lease, how: int, state: str) -> None:
        handle, pool = lease.handle, lease.route.pool
        rc = self._port.settle(handle, how, self._now())
        self._leases.pop(handle, None)
        if state == RUNNING:
            outcome = how & 3
            if outcome == DONE:
                pool.settled += 1
                if lease._used is not None:
                    pool.learn_tokens(lease._used)
                self._observe_progress(lease)
                if self.backoff.trouble:
                    self.backoff.succeeded(lease)
            elif outcome == REFUND:
                pool.refunded += 1
            else:
                pool.failed += 1
        if rc > 0 or self._waiters:
            self._deliver()
            self._arm()
        elif self._subscriptions:
            self._publish()
        if self._closing and not self._leases:
            self._idle.set()
            while self._on_idle:
                self._on_idle.pop()()

    def _observe_progress(self, lease: Lease) -> None:
        if lease.route.kind == "model":
            silence = max(lease._silence_ns, self.clock.now_ns() - lease._beat_ns)
            lease.route.pool.progress.observe(silence / 1e9)

    def _failed(self, lease: Lease, exc: BaseException) -> ProviderError | None:
        error = self.backoff.failed(lease, exc)
        if lease.state == RUNNING or lease.state == REAPED:
            state, lease.state = lease.state, ENDED
            charge = 0 if error is not None and error.kind in ("rate", "quota", "auth") else lease._input
            used = charge if lease._used is None else lease._used
            self._end(lease, REFUND if lease._refund else FAILED | used << 2, state)
        return error

    def _abandon(self, lease: Lease) -> None:
        if lease.state == RUNNING and self._port.reap(lease.handle, self._now()) >= 0:
            lease.state = REAPED
            self._deliver()
            self._arm()

    # --- time ---

    def _arm(self) -> None:
        """Sets the one timer to the earliest time at which a waiting call can run without anybody settling."""
        due = self._port.due()
        if due >= 0:
            self._arm_at(due)

    def _arm_at(self, due: int) -> None:
        with self._timer_lock:
            if self._timer is not None:
                if self._timer.fn is not None and self._timer.when_ns <= due:
                    return
                self._timer.cancel()
            self._timer = self.clock.call_at(due, self._tick)

    def _tick(self) -> None:
        with self._timer_lock:
            self._timer = None
        self._port.advance(self._now())
        self._deliver()
        self._arm()

    # --- looking ---

    def statistics(self) -> Statistics:
        """Counters and levels of every pool, limit and scope."""
        from agentrm.scheduling.report import statistics

        return statistics(self)

    def snapshot(self) -> Snapshot:
        """Who holds a lane and who waits, for how long."""
        from agentrm.scheduling.report import snapshot

        return snapshot(self)

    def events(self, start: int | None = None) -> Any:
        """Iterator over the transitions since event number `start` (default: all that the ring still has) up to now."""
        from agentrm.scheduling.events import read

        return read(self, start)

    def subscribe(self, callback: Callable[[Any], object]) -> Subscription:
        """Calls `callback(event)` for every transition from now on, in the thread that caused it. Returns a handle with
        `close()` and `lost`, the number of events that were overwritten before they could be delivered."""
        from agentrm.scheduling.events import Subscription

        return Subscription(self, callback)

    def _publish(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.pump()

    # --- providers ---

    def observe_headers(self, lease: Lease, headers: HeaderLimits) -> None:
        """Lets a provider's own account of what is left correct the limits of the call's pool."""
        self.backoff.observe(lease.route, headers)

    def reopen(self, pool: str | None = None) -> None:
        """Forgets refusals and slow-downs of the pool's scopes and account (all pools without a name)."""
        self.backoff.reopen(pool)
        self._tick()

    def attach(self, x: Any, **identity: Any) -> Any:
        """The gated equivalent of a model, client, tool, team or crew of any framework with an installed adapter."""
        from agentrm.adapters import attach

        return attach(self, x, **identity)

    # --- end ---

    def close(self, timeout: float | None = 0.0) -> CloseReport:
        """Refuses new work, fails what waits with ManagerClosed, lets running work end within `timeout` seconds (None: as
        long as it takes) and reports what it left. Blocks this thread; `aclose` does not."""
        from agentrm.scheduling.closing import close

        return close(self, timeout)

    async def aclose(self, timeout: float | None = 0.0) -> CloseReport:
        """`close` without blocking the loop."""
        from agentrm.scheduling.closing import aclose

        return await aclose(self, timeout)

    def __enter__(self) -> ResourceManager:
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        self.close()
        return False

    def __repr__(self) -> str:
        running, waiting = len(self._leases), len(self._queued)
        return f"<ResourceManager {self.name!r}: {running} running, {waiting} waiting>"


def _seconds(key: str, value: float | None, *, zero: bool = False) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or (value == 0 and not zero):
        raise ConfigError(key, value, f"seconds, a number {'from' if zero else 'above'} 0")
    return float(value)
