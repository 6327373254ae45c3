"""One lease round one call: sync, async, and sync work awaited from an event loop.

    acquire -> call -> settle by the use reported
                    -> failed: tell the scope, free the lane, then try again or raise what the provider raised

A sync call can't be interrupted, so it runs on a worker thread (with the caller's context variables): when
its lease is reaped the caller gets the typed error at once, the left-over thread is a zombie of the pool
until it ends, and what it returns then is dropped. What is async runs under `lease.guard()`: a reap
interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from agentrm.adapters.attempts import Attempts, pause, pause_async
from agentrm.adapters.guarding import guarded, is_watched
from agentrm.adapters.layers import Layer, is_inner_layer
from agentrm.adapters.leasing import admit, fail, new_lease, settle
from agentrm.adapters.leaving import current_leaving
from agentrm.adapters.spec import CallSpec
from agentrm.errors import LeaseError
from agentrm.limits.provider_errors import ProviderError
from agentrm.threads import Signal, Work, Worker, borrow, on_thread

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["acall", "acall_blocking", "call"]

T = TypeVar("T")


def call(rm: ResourceManager, spec: CallSpec, fn: Callable[[], T]) -> T:
    """`fn()` under a lease. Blocks the calling thread while queued: not for event loops (`acall_blocking`).

    Raises what `fn` raised once no further attempt makes sense, `AdmissionError` when the call was not
    admitted, `RunTimeout` or `IdleTimeout` when it was reaped (in the framework's own type where
    `spec.translate` has one), `LoopDetected` when guards refused it."""
    if is_inner_layer(rm, spec):
        return fn()
    if not is_watched(spec):
        return _call(rm, spec, fn)
    with guarded(spec) as seen:
        return seen(_call(rm, spec, fn))  # type: ignore[no-any-return]


def _call(rm: ResourceManager, spec: CallSpec, fn: Callable[[], T]) -> T:
    attempts: Attempts | None = None  # made when one failed: most calls need none
    while True:
        attempt = _Attempt(rm, spec, again=attempts is not None)
        try:
            return attempt.run(fn)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - tried again or raised as it is
            attempts = attempts or Attempts(rm, spec)
            wait = attempts.pause_or_raise(attempt.lease, error, attempt.problem)
        pause(rm, wait)


async def acall(rm: ResourceManager, spec: CallSpec, fn: Callable[[], Awaitable[T]]) -> T:
    """`await fn()` under a lease; raises as `call`. Cancellation is passed on to the work and frees the
    lane."""
    if is_inner_layer(rm, spec):
        return await fn()
    if not is_watched(spec):
        return await _acall(rm, spec, fn)
    with guarded(spec) as seen:
        return seen(await _acall(rm, spec, fn))  # type: ignore[no-any-return]


async def _acall(rm: ResourceManager, spec: CallSpec, fn: Callable[[], Awaitable[T]]) -> T:
    attempts: Attempts | None = None  # made when one failed: most calls need none
    while True:
        attempt = _Attempt(rm, spec, again=attempts is not None)
        try:
            return await attempt.run_async(fn)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - tried again or raised as it is
            attempts = attempts or Attempts(rm, spec)
            wait = attempts.pause_or_raise(attempt.lease, error, attempt.problem)
        await pause_async(rm, wait, spec)


async def acall_blocking(rm: ResourceManager, spec: CallSpec, fn: Callable[[], T]) -> T:
    """`fn()`, which blocks, awaited: queued without a thread, then run on a worker thread, not in the
    loop's executor.

    A caller that is cancelled leaves at once; the lane counts as a zombie's until the thread ends.
    """
    if is_inner_layer(rm, spec):
        return await on_thread(fn)
    if not is_watched(spec):
        return await _acall_blocking(rm, spec, fn)
    with guarded(spec) as seen:
        return seen(await _acall_blocking(rm, spec, fn))  # type: ignore[no-any-return]


async def _acall_blocking(rm: ResourceManager, spec: CallSpec, fn: Callable[[], T]) -> T:
    attempts: Attempts | None = None  # made when one failed: most calls need none
    while True:
        attempt = _Attempt(rm, spec, again=attempts is not None)
        try:
            return await attempt.run_blocking(fn)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - tried again or raised as it is
            attempts = attempts or Attempts(rm, spec)
            wait = attempts.pause_or_raise(attempt.lease, error, attempt.problem)
        await pause_async(rm, wait, spec)


class _Attempt:
    """One attempt: one lease. `problem` is what a provider's failure was read as."""

    __slots__ = ("again", "lease", "problem", "rm", "spec")

    def __init__(self, rm: ResourceManager, spec: CallSpec, *, again: bool) -> None:
        self.rm, self.spec, self.again = rm, spec, again
        self.lease: Any = None
        self.problem: ProviderError | None = None

    def run(self, fn: Callable[[], Any]) -> Any:
        over, leaving = threading.Event(), current_leaving()
        lease = self.lease = new_lease(self.rm, self.spec, lambda *_: over.set(), again=self.again)
        lease.acquire()
        work, worker = self._work(fn, over.set)
        try:
            if leaving is not None:
                leaving.watch(over.set)
            over.wait()
        except BaseException:
            if work.leave():
                lease.abandon()
            else:
                worker.give_back()
            raise
        finally:
            if leaving is not None:
                leaving.forget(over.set)
        if work.leave():  # not over: reaped, or its step was left
            lease.abandon()
            raise lease.error or LeaseError(
                "whoever waited for this call was cancelled; its work goes on unseen until it ends",
                pool=lease.pool,
                agent=lease.agent,
            )
        worker.give_back()
        return work.result()

    async def run_async(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        lease = self.lease = new_lease(self.rm, self.spec, again=self.again)
        await admit(lease, self.spec)
        layer = Layer(self.rm, self.spec)
        try:
            with lease.guard(), layer.around():
                result = await fn()
        except BaseException as error:
            layer.end()
            self.problem = fail(lease, self.spec, error)
            raise
        layer.end()
        settle(self.rm, lease, self.spec, result)
        return result

    async def run_blocking(self, fn: Callable[[], Any]) -> Any:
        over = Signal()
        lease = self.lease = new_lease(self.rm, self.spec, lambda *_: over.set(), again=self.again)
        await admit(lease, self.spec)
        work, worker = self._work(fn, over.set)
        try:
            await over.wait()  # not under guard(): what runs is the thread, which no interruption ends
        except BaseException:
            if work.leave():
                lease.abandon()
            else:
                worker.give_back()
            raise
        if work.leave():
            assert lease.error is not None, "its work still runs, so it was reaped"
            raise lease.error
        worker.give_back()
        return work.result()

    def _work(self, fn: Callable[[], Any], wake: Callable[[], None]) -> tuple[Work, Worker]:
        """Starts `fn` within this lease, which ends where `fn` ends, whether or not somebody still waits."""
        lease, layer = self.lease, Layer(self.rm, self.spec)

        def run() -> Any:
            try:
                result = fn()
            except BaseException as error:
                layer.end()
                self.problem = fail(lease, self.spec, error)
                raise
            layer.end()
            settle(self.rm, lease, self.spec, result)
            return result

        worker = borrow()
        try:
            with lease.guard(), layer.around():  # the worker gets a copy of this context
                work = Work(run, wake, worker.give_back)
        except BaseException:  # reaped or interrupted before it began
            worker.give_back()
            lease.release()
            raise
        work.start(worker)
        return work, worker
