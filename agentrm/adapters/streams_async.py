"""One lease round one async stream, as `streams` does it for a sync one.

Each `__anext__` runs under `lease.guard()`, so a reap interrupts it. A stream that is dropped frees its
lane at once, not some turns of the loop later, and even when its loop is gone; the upstream iterator is
closed on its loop while that lives. `astream_blocking` is for a sync iterator read from a loop: queued
without a thread, read on one worker thread."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from agentrm.adapters.attempts import Attempts, pause_async
from agentrm.adapters.layers import Layer, is_inner_layer
from agentrm.adapters.leasing import admit, charge, fail, new_lease, observe, progress
from agentrm.adapters.spec import CallSpec
from agentrm.adapters.streams import AFTER_THE_LAST, END, close_iterator, log
from agentrm.adapters.usage import Meter
from agentrm.errors import AgentRMError, ForkedError
from agentrm.limits.provider_errors import ProviderError
from agentrm.threads import Signal, Work, Worker, borrow

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["AsyncStream", "astream", "astream_blocking"]

T = TypeVar("T")


def astream(rm: ResourceManager, spec: CallSpec, make: Callable[[], AsyncIterable[T]]) -> AsyncIterator[T]:
    """The chunks of `make()` under one lease, which is asked for at the first `__anext__`. Raises as
    `acall`."""
    return AsyncStream(rm, spec, lambda: _Native(make()))


def astream_blocking(rm: ResourceManager, spec: CallSpec, make: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
    """The same for a sync iterator, whose `next` blocks."""
    return AsyncStream(rm, spec, lambda: _Threaded(make))


class _Source(Protocol):
    """Where the chunks come from. `busy`: work goes on that the caller could not stop."""

    busy: bool

    async def pull(self, lease: Any, layer: Layer | None) -> Any:
        """The next chunk or END, nested in the lease unless that is None."""
        ...

    async def close(self) -> None: ...

    def reaped(self, error: AgentRMError) -> None:
        """The lease was taken away during `pull`, which must now end with `error`. From any thread."""
        ...

    def drop(self, ended: Callable[[], None]) -> None:
        """Closes what is left once the work ends that could not be stopped, then calls `ended`."""
        ...


class AsyncStream(Generic[T]):
    """An async iterator that holds a lane while it is at work. `aclose` is idempotent; dropping it frees
    the lane."""

    __slots__ = ("__weakref__", "_after", "_attempts", "_make", "_over", "_part", "_plain", "_rm", "_spec")

    def __init__(self, rm: ResourceManager, spec: CallSpec, make: Callable[[], _Source]) -> None:
        self._rm, self._spec, self._make = rm, spec, make
        self._attempts = Attempts(rm, spec)
        self._part: _Part | None = None
        self._plain: _Source | None = None
        self._after: deque[T] = deque()
        self._over = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._after:
            return self._after.popleft()
        if self._over:
            raise StopAsyncIteration
        if self._plain is None and self._part is None and is_inner_layer(self._rm, self._spec):
            self._plain = self._make()
        chunk = await (self._next() if self._plain is None else self._plain.pull(None, None))
        if chunk is END:
            self._over, self._part, self._plain = True, None, None
            raise StopAsyncIteration
        return chunk  # type: ignore[no-any-return]

    async def _next(self) -> Any:
        while True:
            part = self._part = self._part or self._new_part()
            try:
                chunk = await part.next()
                if chunk is not END and self._spec.is_last is not None and self._spec.is_last(chunk):
                    await self._drain(part)
                    self._over, self._part = True, None
                return chunk
            except BaseException as error:
                self._part, self._over = None, True
                if not isinstance(error, Exception):
                    raise
                if part.started:
                    if isinstance(error, AgentRMError):
                        raise self._spec.translated(error) from error.__cause__
                    raise
                wait = self._attempts.pause_or_raise(part.lease, error, part.problem)
            self._over = False
            await pause_async(self._rm, wait, self._spec)

    async def _drain(self, part: _Part) -> None:
        """As in `streams`."""
        try:
            while (more := await part.next()) is not END:
                self._after.append(more)
        except Exception:  # noqa: BLE001 - logged
            log.warning(AFTER_THE_LAST, exc_info=True)

    def _new_part(self) -> _Part:
        return _Part(self._rm, self._spec, self._make(), again=self._attempts.any_failed)

    async def aclose(self) -> None:
        """Frees the lane and closes the upstream iterator."""
        self._over = True
        part, self._part = self._part, None
        if part is not None:
            await part.close()
        plain, self._plain = self._plain, None
        if plain is not None:
            await plain.close()

    def __del__(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            with suppress(ForkedError):  # a stream of the parent process, dropped in a child
                part.drop()


class _Part:
    """One attempt: one lease, one source. `started` once a chunk came."""

    __slots__ = (
        "_ended", "_layer", "_loop", "_meter", "_pulling", "_reaped", "_rm", "_source", "_spec",
        "lease", "problem", "started",
    )  # fmt: skip

    def __init__(self, rm: ResourceManager, spec: CallSpec, source: _Source, *, again: bool) -> None:
        self._rm, self._spec, self._source = rm, spec, source
        self._meter = Meter(spec.usage, spec.size, adds=spec.usage_adds)
        self._layer = Layer(rm, spec)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulling = self._ended = False
        self._reaped: AgentRMError | None = None
        self.problem: ProviderError | None = None
        self.started = False
        self.lease = new_lease(rm, spec, self._on_reap, again=again, streams=True)

    async def next(self) -> Any:
        """The next chunk or END. When it raises, this part has ended."""
        if self._loop is None:
            await admit(self.lease, self._spec)
            self._loop = asyncio.get_running_loop()
        if self._reaped is not None:
            raise self._reaped
        self._pulling = True
        try:
            chunk = await self._source.pull(self.lease, self._layer)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._pulling = False
        if (reaped := self._taken()) is not None:  # in the moment in which the chunk came
            self._fail(reaped)
            raise reaped
        if chunk is END:
            self._settle(complete=True)
            return END
        first, self.started = not self.started, True
        try:
            if first:
                observe(self._rm, self.lease, self._spec, chunk)
            progress(self.lease, self._meter, chunk)
        except BaseException:  # the reply is too long, or what reads the chunks failed
            await self.close()
            raise
        return chunk

    def _taken(self) -> AgentRMError | None:
        return self._reaped

    async def close(self) -> None:
        if self._ended or self._loop is None:
            return
        try:
            await self._source.close()
        finally:
            self._settle(complete=False)

    def drop(self) -> None:
        """From a finaliser: nothing can be awaited, the loop may be gone."""
        if self._ended or self._loop is None:
            return
        self._settle(complete=False)
        self._close_later()

    def _settle(self, *, complete: bool) -> None:
        self._layer.end()
        self._ended = True
        try:
            if self._spec.kind == "model":
                charge(self.lease, self._meter.total(self._spec.input_tokens, complete=complete))
        finally:
            self.lease.release()

    def _fail(self, error: BaseException) -> None:
        self._layer.end()
        self._ended = True
        if self._source.busy:  # a thread goes on: the lane is a zombie's until it ends
            if not self.lease.reaped:
                self.lease.abandon()
            self._source.drop(self.lease.release)
            return
        try:
            if self.started and self._spec.kind == "model":
                charge(self.lease, self._meter.total(self._spec.input_tokens, complete=False))
        finally:
            self.problem = fail(self.lease, self._spec, error)
        if self.lease.reaped or not isinstance(error, Exception):
            self._close_later()

    def _on_reap(self, _: Any, error: AgentRMError) -> None:
        self._reaped = error
        if self._pulling:
            self._source.reaped(error)
        else:  # between two chunks: the consumer stopped reading, what is upstream goes on sending
            self._ended = True
            self.lease.release()
            self._close_later()

    def _close_later(self) -> None:
        loop, source = self._loop, self._source
        if loop is None or loop.is_closed():
            return

        def close() -> None:
            _keep(loop.create_task(_closed(source)))

        try:
            loop.call_soon_threadsafe(close)
        except RuntimeError:
            return  # closed meanwhile, and the connection with it


_closing: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _closed(source: _Source) -> None:
    try:
        await source.close()
    except Exception:  # noqa: BLE001, S110 - nobody is left to tell; the stream was given up
        pass


class _Native:
    """An async iterator."""

    __slots__ = ("_iterable", "_iterator", "busy")

    def __init__(self, iterable: AsyncIterable[Any]) -> None:
        self._iterable = iterable
        self._iterator: AsyncIterator[Any] | None = None
        self.busy = False

    async def pull(self, lease: Any, layer: Layer | None) -> Any:
        if lease is None or layer is None:
            return await self._pull()
        with lease.guard(), layer.around():
            return await self._pull()

    async def _pull(self) -> Any:
        if self._iterator is None:
            self._iterator = self._iterable.__aiter__()
        try:
            return await self._iterator.__anext__()
        except StopAsyncIteration:
            return END

    def reaped(self, error: AgentRMError) -> None:
        """The guard interrupts the await."""

    async def close(self) -> None:
        """A generator has `aclose`, the streams of clients often an async `close`; what has neither needs none."""
        upstream: Any = self._iterator or self._iterable
        close = getattr(upstream, "aclose", None) or getattr(upstream, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing

    def drop(self, ended: Callable[[], None]) -> None:
        ended()


class _Threaded:
    """A sync iterator, read on a worker thread."""

    __slots__ = ("_error", "_iterator", "_make", "_over", "_worker", "busy")

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._iterator: Iterator[Any] | None = None
        self._worker: Worker | None = None
        self._over: Signal | None = None
        self._error: AgentRMError | None = None
        self.busy = False

    async def pull(self, lease: Any, layer: Layer | None) -> Any:
        over = self._over = Signal()
        if lease is None or layer is None:
            work = Work(self._next, over.set, _nothing)
        else:
            with lease.guard(), layer.around():  # the worker gets a copy of this context
                work = Work(self._next, over.set, _nothing)
        try:
            chunk = await self._outcome(work, over)
        except Exception:
            if not self.busy:
                self._give_back()
            raise
        if chunk is END:
            self._give_back()
        return chunk

    def reaped(self, error: AgentRMError) -> None:
        self._error = error
        if self._over is not None:
            self._over.set()

    async def close(self) -> None:
        if self._worker is None or self.busy:
            return
        over = Signal()
        await self._outcome(Work(lambda: close_iterator(self._iterator), over.set, _nothing), over)
        self._give_back()

    def drop(self, ended: Callable[[], None]) -> None:
        worker, self._worker = self._worker, None

        def last() -> None:
            try:
                close_iterator(self._iterator)
            except Exception:  # noqa: BLE001, S110 - nobody is left to tell
                pass
            finally:
                ended()
                if worker is not None:
                    worker.give_back()

        if worker is None:
            ended()
        else:
            worker.submit(last)

    async def _outcome(self, work: Work, over: Signal) -> Any:
        if self._worker is None:
            self._worker = borrow()
        work.start(self._worker)
        try:
            await over.wait()
        except BaseException:
            self.busy = work.leave()
            raise
        if work.leave():  # not over: reaped
            self.busy = True
            raise self._error or RuntimeError("the stream was woken without a reason")
        return work.result()

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._make())
        return next(self._iterator, END)

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.give_back()


def _nothing() -> None:
    """The work that was left behind ended: `drop` has put the rest behind it."""
