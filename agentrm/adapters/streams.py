"""One lease round one sync stream, from its first `next` to its last chunk, close or drop.

Each chunk is a heartbeat. `next` runs on a worker thread, the same one for the whole stream, so that a
stream that went silent can be reaped; what it yields after that is dropped and the upstream iterator
closed. An attempt that failed before its first chunk is tried again; afterwards the error goes to the
consumer, because chunks can't be taken back."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentrm.adapters.attempts import Attempts, pause
from agentrm.adapters.layers import Layer, is_inner_layer
from agentrm.adapters.leasing import charge, fail, new_lease, observe, progress
from agentrm.adapters.spec import CallSpec
from agentrm.adapters.usage import Meter
from agentrm.errors import AgentRMError, ForkedError
from agentrm.limits.provider_errors import ProviderError
from agentrm.threads import Work, Worker, borrow

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Stream", "stream"]

T = TypeVar("T")
END: Any = object()
AFTER_THE_LAST = "a stream failed after its last chunk; its answer is complete and was handed out"
log = logging.getLogger("agentrm")


def stream(rm: ResourceManager, spec: CallSpec, make: Callable[[], Iterable[T]]) -> Iterator[T]:
    """The chunks of `make()` under one lease, which is asked for at the first `next`. Raises as `call`."""
    return Stream(rm, spec, make)


class Stream(Generic[T]):
    """An iterator that holds a lane while it is at work. `close` is idempotent; dropping it closes it."""

    __slots__ = ("__weakref__", "_after", "_attempts", "_make", "_over", "_part", "_plain", "_rm", "_spec")

    def __init__(self, rm: ResourceManager, spec: CallSpec, make: Callable[[], Iterable[T]]) -> None:
        self._rm, self._spec, self._make = rm, spec, make
        self._attempts = Attempts(rm, spec)
        self._part: _Part | None = None
        self._plain: Iterator[T] | None = None
        self._after: deque[T] = deque()
        self._over = False

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if self._after:
            return self._after.popleft()
        if self._over:
            raise StopIteration
        if self._plain is None and self._part is None and is_inner_layer(self._rm, self._spec):
            self._plain = iter(self._make())
        if self._plain is not None:
            return next(self._plain)
        while True:
            part = self._part or _Part(self._rm, self._spec, self._make, again=self._attempts.any_failed)
            self._part = part
            try:
                chunk = part.next()
                if chunk is not END and self._spec.is_last is not None and self._spec.is_last(chunk):
                    self._drain(part)
                    self._over, self._part = True, None
            except BaseException as error:
                self._part = None
                if part.started or not isinstance(error, Exception):
                    self._over = True
                    if isinstance(error, AgentRMError):
                        raise self._spec.translated(error) from error.__cause__
                    raise
                try:
                    wait = self._attempts.pause_or_raise(part.lease, error, part.problem)
                except BaseException:
                    self._over = True
                    raise
                pause(self._rm, wait)
                continue
            if chunk is END:
                self._over, self._part = True, None
                raise StopIteration
            return chunk  # type: ignore[no-any-return]

    def _drain(self, part: _Part) -> None:
        """Takes what comes after the last chunk, so that the lane is free when that one is handed out. The answer is
        complete by then, and a failure does not take it away."""
        try:
            while (more := part.next()) is not END:
                self._after.append(more)
        except Exception:
            log.warning(AFTER_THE_LAST, exc_info=True)

    def close(self) -> None:
        """Frees the lane and closes the upstream iterator."""
        self._over = True
        part, self._part = self._part, None
        if part is not None:
            part.close()
        plain, self._plain = self._plain, None
        if plain is not None:
            close_iterator(plain)

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ForkedError):  # the block of the parent process, left in a child
            self.close()

    def __del__(self) -> None:
        if not self._over:
            self.__exit__()


class _Part:
    """One attempt: one lease, one upstream iterator, one worker. `started` once a chunk came."""

    __slots__ = (
        "_context", "_iterator", "_layer", "_lock", "_make", "_meter", "_reaped", "_rm", "_spec", "_wake", "_work",
        "_worker", "lease", "problem", "started",
    )  # fmt: skip

    def __init__(self, rm: ResourceManager, spec: CallSpec, make: Callable[[], Iterable[Any]], *, again: bool) -> None:
        self._rm, self._spec, self._make = rm, spec, make
        self._lock = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._meter = Meter(spec.usage, spec.size, adds=spec.usage_adds)
        self._layer = Layer(rm, spec)
        self._iterator: Iterator[Any] | None = None
        self._worker: Worker | None = None
        self._context: contextvars.Context | None = None
        self._work: Work | None = None
        self._reaped: AgentRMError | None = None
        self.problem: ProviderError | None = None
        self.started = False
        self.lease = new_lease(rm, spec, self._on_reap, again=again, streams=True)

    def next(self) -> Any:
        """The next chunk or END. When it raises, this part has ended."""
        if self._reaped is not None:  # between two chunks
            raise self._reaped
        if self._context is None:
            self._begin()
        work = Work(self._pull, self._wake.release, self._late, self._context)
        with self._lock:
            if self._reaped is not None:
                raise self._reaped
            worker, self._work = self._worker, work
        if worker is None:
            raise RuntimeError("this stream was closed by another thread while it was read")
        work.start(worker)
        try:
            self._wake.acquire()
        except BaseException:
            if work.leave():
                self.lease.abandon()
            else:
                self.close()
            raise
        with self._lock:
            self._work = None
            if self._reaped is not None:
                raise self._reaped
        try:
            chunk = work.result()
        except BaseException as error:
            self._fail(error)
            raise
        if chunk is END:
            if (mine := self._take_worker()) is not None:
                self._settle(mine, complete=True)
            return END
        first, self.started = not self.started, True
        try:
            if first:
                observe(self._rm, self.lease, self._spec, chunk)
            progress(self.lease, self._meter, chunk)
        except BaseException:  # the reply is too long, or what reads the chunks failed
            self.close()
            raise
        return chunk

    def _begin(self) -> None:
        self.lease.acquire()
        self._worker = borrow()
        try:
            with self.lease.guard(), self._layer.around():  # the chunks are made in a copy of this context
                self._context = contextvars.copy_context()
        except BaseException:  # reaped or interrupted in this very moment
            if (idle := self._take_worker()) is not None:
                self._end_zombie(idle)
            raise

    def close(self) -> None:
        """The consumer leaves between two chunks. The upstream iterator is closed in the consumer's thread,
        as if the stream were not gated: nothing is waited for in a finaliser."""
        if (worker := self._take_worker()) is None:
            return
        try:
            if self._iterator is not None:
                close_iterator(self._iterator)
        finally:
            self._settle(worker, complete=False)

    def _pull(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._make())
        return next(self._iterator, END)

    def _take_worker(self) -> Worker | None:
        """Whoever takes the worker ends the lease: the consumer, or the reaper's side."""
        with self._lock:
            worker, self._worker = self._worker, None
            return worker

    def _settle(self, worker: Worker, *, complete: bool) -> None:
        self._layer.end()
        try:
            if self._spec.kind == "model":
                charge(self.lease, self._meter.total(self._spec.input_tokens, complete=complete))
        finally:
            self.lease.release()
            worker.give_back()

    def _fail(self, error: BaseException) -> None:
        if (worker := self._take_worker()) is None:
            return
        self._layer.end()
        try:
            if self.started and self._spec.kind == "model":
                charge(self.lease, self._meter.total(self._spec.input_tokens, complete=False))
        finally:
            worker.give_back()
            self.problem = fail(self.lease, self._spec, error)

    def _on_reap(self, _: Any, error: AgentRMError) -> None:
        with self._lock:
            self._reaped, work = error, self._work
        if work is not None and work.leave():
            self._wake.release()
        elif (worker := self._take_worker()) is not None:
            worker.submit(lambda: self._end_zombie(worker))

    def _late(self) -> None:
        """On the worker: the work ended that the consumer had left."""
        if (worker := self._take_worker()) is not None:
            self._end_zombie(worker)

    def _end_zombie(self, worker: Worker) -> None:
        """On the worker, when nobody waits for its work any more: the connection upstream is closed."""
        self._layer.end()
        try:
            if self._iterator is not None:
                close_iterator(self._iterator)
        except Exception:  # noqa: BLE001, S110 - nobody is left to tell; the consumer has its typed error
            pass
        finally:
            self.lease.release()
            worker.give_back()


def close_iterator(iterator: object) -> None:
    """Closes a generator or a client's stream; what has no `close` needs none."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
