"""The right to run one call: acquired, kept alive by progress, settled, given back exactly once.

A lease is used as `with`, as `async with`, or by hand (`acquire` / `release`). Its states: see `states`.

Releasing is idempotent and works from any thread or loop. Leaving the block frees the lane and charges what `settle`
was told; without it the estimate, and after an exception the input estimate, unless `refund` was called.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentrm.errors import ConfigError, ForkedError, LeaseError
from agentrm.restoring import restore
from agentrm.scheduling.guard import Guard, current, current_lease
from agentrm.scheduling.stalls import shown_ns
from agentrm.scheduling.states import NEW, RUNNING
from agentrm.scheduling.waiters import LoopWaiter, ThreadWaiter, warn_of_stopped_loop

if TYPE_CHECKING:
    from agentrm.cancellation import cancellable
    from agentrm.clock import Timer
    from agentrm.limits.account import Charge
    from agentrm.limits.prices import Cost, Use
    from agentrm.limits.provider_errors import ProviderError
    from agentrm.scheduling.manager import ResourceManager
    from agentrm.scheduling.routing import Route
    from agentrm.scheduling.stalls import Stall

__all__ = ["Lease", "current_lease"]

MOST_TOKENS = 2_000_000_000


class Lease:
    """See the module. Made by `ResourceManager.lease`, which says what the arguments mean."""

    # Most leases need few of these: what stays at its default lives in the class.
    state = NEW
    handle = 0
    session: str | None = None
    resumed = False
    submitted_ns = granted_ns = 0
    error: LeaseError | None = None
    """Why the lease was taken away."""
    refusal: BaseException | None = None
    """Why it was taken out of the queue."""
    _used: int | None = None
    _refund = False
    _wait_max: float | None = None
    _idle_s: float | None = None
    _run_s: float | None = None
    _memory = 0
    _on_reap: Callable[[Lease, LeaseError], object] | None = None
    _beyond: Lease | None = None
    """The lease of another manager that this call runs in, where that is nearer than `_parent`."""
    _timer: Timer | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _left: object = None
    _task: asyncio.Task[Any] | None = None
    _token: Token[Lease | None] | None = None
    _interrupted = False
    _cancels = 0
    _beat_ns = 0
    _stall: Stall | None = None
    _charges: tuple[Charge, ...] | None = None
    """What its budgets have reserved for it; None: they were not asked."""
    _stated: tuple[int | None, int | None] = (None, None)
    """Tokens in all and input tokens, as the caller said them."""
    _max_output: int | None = None
    _use: Use | None = None
    _cancellable: cancellable | None = None
    tool: str | None = None
    """The tool that is called, where that was said."""
    beats = 0
    """Heartbeats so far."""
    streams = False
    """Whether the call shows progress with each chunk."""
    on_wait: Callable[[asyncio.Future[None]], object] | None = None
    """Called with the future that it sleeps on, where it has to wait on a loop: cancelling that leaves the queue."""

    def __init__(self, rm: ResourceManager, route: Route, parent: Lease | None, tokens: int) -> None:
        self._rm, self.route, self._parent, self.tokens = rm, route, parent, tokens
        self._input = tokens

    # --- what it is ---

    @property
    def pool(self) -> str:
        return self.route.pool.name

    @property
    def agent(self) -> str:
        return self.route.agent

    @property
    def tenant(self) -> str:
        return self.route.tenant

    @property
    def priority(self) -> str:
        return self.route.priority

    @property
    def awaited(self) -> bool:
        """Whether a person waits for it: it is interactive, or an enclosing call is."""
        lease: Lease | None = self
        while lease is not None and lease.route.priority != "interactive":
            lease = lease._parent
        return lease is not None

    @property
    def parent(self) -> Lease | None:
        """The lease that this call is nested in."""
        return self._parent

    def _within(self, rm: ResourceManager) -> Lease | None:
        """The innermost lease of that manager that this call runs in."""
        lease: Lease | None = self
        while lease is not None and lease._rm is not rm:
            lease = lease._beyond or lease._parent
        return lease

    @property
    def reaped(self) -> bool:
        """Whether the lease was taken away because its call ran or idled too long; `error` says which."""
        return self.error is not None

    @property
    def waited_s(self) -> float:
        """Seconds in the queue, so far or in all."""
        if not self.submitted_ns:
            return 0.0
        return ((self.granted_ns or self._rm.clock.now_ns()) - self.submitted_ns) / 1e9

    @property
    def held_s(self) -> float:
        """Seconds since the lane was granted, 0 if it never was."""
        return (self._rm.clock.now_ns() - self.granted_ns) / 1e9 if self.granted_ns else 0.0

    @property
    def retry_attempts(self) -> int:
        """Attempts of one call in all that this pool allows (`pools.NAME.retry.attempts`)."""
        return self.route.pool.retry_attempts

    @property
    def recover(self) -> int:
        """How often a call found hanging may be tried again on a fresh connection (`reaper.recover`)."""
        return self.route.pool.recover

    def __repr__(self) -> str:
        return f"<Lease {self.agent!r} in {self.pool!r}, {self.priority}, {self.state}>"

    # --- getting it ---

    def acquire(self) -> Lease:
        """Waits for the lane, blocking this thread. Raises an AdmissionError if it is not to be had."""
        gate = self._rm.gate
        if not (gate.submit(self) if gate.budgets is None else gate.budgets.enter(self)):
            try:
                waiter = ThreadWaiter()
                if gate.register(self, waiter):
                    warn_of_stopped_loop()
                    waiter.wait()
                    gate.granted(self)
            except BaseException:
                gate.give_up(self)
                raise
        return self

    async def acquire_async(self) -> Lease:
        """Waits for the lane without blocking the loop. Cancellation leaves the queue at once."""
        gate = self._rm.gate
        self._loop = loop = asyncio.get_running_loop()
        if not (gate.submit(self) if gate.budgets is None else await gate.budgets.enter_async(self)):
            try:
                waiter = LoopWaiter(gate.loops.seen(loop), lambda: gate.drop(self))
                if gate.register(self, waiter):
                    if self.on_wait is not None:
                        self.on_wait(waiter.future)
                    await waiter.future
                    if waiter.error is not None:
                        raise waiter.error
                    gate.granted(self)
            except BaseException:
                gate.give_up(self)
                raise
        return self

    def acquire_then(self, then: Callable[[BaseException | None], object], *, free: bool = False) -> None:
        """Asks for the lane and returns at once: for whoever runs many calls in one thread. `then(error)` is called
        once, with None when the lane is granted, perhaps before this returns, from whichever thread; it must be short.
        `release` leaves the queue. `free`: it is the manager's own work, no budget is asked about it."""
        gate = self._rm.gate
        if free:
            self._charges = ()
        if gate.submit_then(self, then) if free or gate.budgets is None else gate.budgets.enter_then(self, then):
            then(None)

    def _is_held(self) -> bool:
        """Whether it was acquired before the block (`try_lease`, `acquire`)."""
        return self.state == RUNNING and self._token is None

    def __enter__(self) -> Lease:
        if not self._is_held():
            self.acquire()
        self._token = current.set(self)
        return self

    async def __aenter__(self) -> Lease:
        if not self._is_held():
            await self.acquire_async()
        self._token = current.set(self)
        self._watch(asyncio.current_task())
        return self

    # --- while it runs ---

    def heartbeat(self, output_tokens: int | None = None, *, estimated: bool = False) -> None:
        """Says that the call makes progress. So do its ancestors, which wait for it.

        `output_tokens`: how many the reply has so far. Raises OutputLimit when they pass the call's `max_output_tokens`
        or what its budgets have left; the call is charged what came. With `estimated` half as much again is let pass of
        the former, because the provider counts exactly and stops by itself.
        """
        if output_tokens is not None and self.state == RUNNING:
            self._check_output(output_tokens, estimated)
        now = self._rm.clock.now_ns()
        if self.state == RUNNING:
            shown = shown_ns(self, self._beat_ns, now)
            if shown is not None:
                progress = self.route.pool.progress_of(self.route.scope)
                if self.beats:
                    progress.went_on(shown)
                else:
                    progress.began(shown, self._input)
            self.beats += 1
        lease: Lease | None = self
        while lease is not None:
            if lease.state == RUNNING:
                lease._beat_ns = now if lease._rm is self._rm else lease._rm.clock.now_ns()
                lease._rm.gate.port.heartbeat(lease.handle, lease._beat_ns)
            lease = lease._beyond or lease._parent

    def waited(self) -> None:
        """Says that the call is not silent but waits for work within it that has no lease at the moment. That is no
        progress from which to learn what is usual."""
        if self.state == RUNNING:
            self._beat_ns = self._rm.clock.now_ns()
            self._rm.gate.port.heartbeat(self.handle, self._beat_ns)

    def _learn_end(self, now: int) -> None:
        """A call without chunks ended well."""
        shown = shown_ns(self, self.granted_ns, now)
        if shown is not None:
            self.route.pool.progress_of(self.route.scope).ended(shown, self.tokens)

    def _check_output(self, output_tokens: int, estimated: bool) -> None:
        try:
            if self._max_output is not None and output_tokens > self._max_output * (1.5 if estimated else 1):
                from agentrm.limits.errors import OutputLimit

                raise OutputLimit(
                    f"the reply to agent {self.agent!r} was stopped after {output_tokens} output tokens; its "
                    f"max_output_tokens is {self._max_output}. What had come is in `partial`; raise it or ask for "
                    "shorter replies",
                    limit=self._max_output, produced=output_tokens, budget=None, pool=self.pool, agent=self.agent,
                )  # fmt: skip
            if self._charges and self._rm.gate.budgets is not None:
                self._rm.gate.budgets.progress(self, output_tokens)
        except LeaseError:
            if self._used is None:  # charged what came, whoever leaves the block without settling
                stated = self._stated[1]
                rest = max(0, self.tokens - output_tokens) if stated is None else stated
                self.settle(input_tokens=rest, output_tokens=output_tokens)
            raise

    def settle(
        self,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        *,
        cached_tokens: int = 0,
        written_tokens: int = 0,
    ) -> None:
        """Records the real usage in tokens; the lane stays until the block is left. Zero or nothing at all counts as
        unknown: then the estimate is charged. Of the input, `cached_tokens` were read from the provider's cache and
        `written_tokens` written to it, which matters for what they cost. Raises ConfigError for what is no count of
        tokens.
        """
        used = 0
        for key, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if value is not None:
                if type(value) is not int or not 0 <= value <= MOST_TOKENS:
                    raise ConfigError(key, value, f"a whole number from 0 to {MOST_TOKENS}")
                used += value
        self._used = min(used, MOST_TOKENS) or None
        if self._rm.priced:
            from agentrm.limits.prices import Use

            for key, value in (("cached_tokens", cached_tokens), ("written_tokens", written_tokens)):
                if type(value) is not int or not 0 <= value <= MOST_TOKENS:
                    raise ConfigError(key, value, f"a whole number from 0 to {MOST_TOKENS}")
            known = Use(input_tokens or 0, output_tokens or 0, cached_tokens, written_tokens)
            self._use = known if known.tokens else None

    @property
    def limits_output(self) -> bool:
        """Whether anything bounds the length of the reply, so that `heartbeat` should be told how long it is."""
        return self._max_output is not None or bool(self._charges)

    @property
    def cost_usd(self) -> Cost:
        """What the call cost by what was settled, in US dollars: 0.0 for what is no model call, `unknown` where the
        use or the price of the model is not known (it is never taken for free)."""
        if self.route.kind != "model":
            return 0.0
        return "unknown" if self._use is None else self._rm.prices.cost(self.route.model, self._use)

    def refund(self) -> None:
        """The call was not made, or must not be charged: everything reserved goes back."""
        self._refund = True

    def fail(self, exc: BaseException) -> ProviderError | None:
        """Tells the scope of the call what its provider answered, and ends the lease. Returns what the error means,
        None if it is not a provider's. The caller raises or retries as it sees fit."""
        return self._rm.gate.failed(self, exc)

    def abandon(self) -> None:
        """The caller left while work goes on that cannot be stopped (a blocked thread): the lane is free, the work is a
        zombie until `release` is called at its end."""
        self._rm.gate.zombies.abandon(self)

    def guard(self) -> Guard:
        """A context manager round one await (or one blocking call) of the leased work. Inside, calls are nested in this
        lease; a reap interrupts the await and comes out as the typed error."""
        return Guard(self)

    # --- giving it back ---

    def release(self) -> None:
        """Frees the lane. Again, late or from elsewhere it does nothing."""
        self._rm.gate.release(self, False)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        token = self._token
        if token is not None:
            self._token = None
            self._restore(token)
        try:
            self._rm.gate.release(self, kind is not None)
        except ForkedError:  # the block of the parent process, left in a child: not the child's to release
            return
        if self.error is not None and kind is None:
            raise self.error

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        alone = self._calm(task)
        self.__exit__(kind, exc, tb)
        if alone and self.error is not None and isinstance(exc, asyncio.CancelledError):
            raise self.error from None

    def _restore(self, token: Token[Lease | None]) -> None:
        if not restore(token) and current.get() is self:  # left in another context: mended if it shows there
            current.set(self._parent)

    def _watch(self, task: asyncio.Task[Any] | None) -> None:
        """From now on a reap interrupts this task."""
        self._task = task
        if sys.version_info >= (3, 11):
            self._cancels = 0 if task is None else task.cancelling()

    def _interrupt(self) -> None:
        """In the loop's thread: stops the task if it is still inside the leased work."""
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def _calm(self, task: asyncio.Task[Any] | None) -> bool:
        """Takes the reaper's cancellation of the task back. True: it was the only one since the work began."""
        if not self._interrupted or task is None:
            return False
        self._interrupted = False
        uncancel = getattr(task, "uncancel", None)  # Python 3.10 has none
        return uncancel is None or uncancel() <= self._cancels
