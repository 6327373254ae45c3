"""An LLM whose every call to its provider takes a lease, and is otherwise the user's own LLM.

CrewAI retries throttled calls three times, the provider's client two times, and neither reads the other's mind: both
are off inside, the gate retries. What a call used is read where the LLM's class tells its own counters."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar, cast

from crewai.llms import retry
from crewai.llms.base_llm import BaseLLM
from crewai.types.streaming import StreamFrame, StreamSession
from crewai.utilities.agent_utils import is_context_length_exceeded
from crewai.utilities.llm_utils import create_llm

from agentrm.adapters import (
    CallSpec,
    Meter,
    Usage,
    acall,
    acall_blocking,
    call,
    estimate_tokens,
    read_usage,
    stream,
    without_client_retries,
)
from agentrm.adapters.copies import gated_copy, like
from agentrm.adapters.leasing import progress
from agentrm.errors import AgentRMError
from agentrm.restoring import restore
from agentrm.scheduling.lease import Lease, current_lease
from agentrm_crewai.compaction import compact, count, is_lone_request
from agentrm_crewai.gating import Gate, make_gate, spec_of

__all__ = ["gate_llm", "gate_llm_with"]

L = TypeVar("L", bound=BaseLLM)

_PLACES = ("messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_CREWAI_RETRIES: ContextVar[bool] | None = getattr(retry, "_active_llm_rate_limit_retry", None)


def gate_llm(rm: Any, llm: L | str, *, client_retries: bool = False, **options: Any) -> L:
    """A copy of `llm` that goes through `rm`; `llm` itself stays as it is. A model's name makes one, as in CrewAI.

    Class, counters of use, hooks, events and streaming are the LLM's own. An LLM without async code gets it: its sync
    call on a thread of ours. Histories that are too long are compacted by `agentrm.context`, without a model. Failures
    that can pass are retried here, with nothing held meanwhile, so CrewAI's own retries and those of the provider's
    client are off inside (`client_retries` keeps the latter).

    `options`: `agent` (default: the agent's role), `priority`, `tenant`, `session`; `pool`, `wait_max`, `idle_s`,
    `run_s` in seconds and `guards` (default: the configuration). Raises ConfigError for other names and values."""
    made = llm if isinstance(llm, BaseLLM) else cast(L, create_llm(llm))
    return gate_llm_with(make_gate(rm, "gate_llm", options), made, client_retries=client_retries)


def gate_llm_with(gate: Gate, llm: L, *, client_retries: bool = False) -> L:
    gated = gated_copy(llm, gate, _methods)
    if not client_retries:
        if getattr(gated, "max_retries", None):  # clients that it makes later
            gated.max_retries = 0
        without_client_retries(gated)
    return gated


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    return {
        "call": _call(cls, gate),
        "acall": _acall(cls, gate),
        "stream_events": _stream_events(cls, gate),
        "summarize_messages": _summarize_messages(gate),
        "is_context_window_overflowing_threshold": _is_overflowing(gate),
        "get_input_tokens_count": _get_input_tokens_count(),
        "model_dump": _model_dump(cls),
        "_track_token_usage_internal": _track(cls),
        "_emit_stream_chunk_event": _emit_chunk(cls),
    }


class _Attempt:
    """What one attempt of a call used and streamed, and its lease."""

    __slots__ = ("lease", "meter", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.meter = Meter()
        self.lease: Lease | None = current_lease()


class _Reader:
    """Whoever reads the frames of a stream. CrewAI's thread would run ahead of him, and on when he has left."""

    __slots__ = ("_asked", "_left")

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)
        self._left = False

    def ask(self) -> None:
        self._asked.release()

    def leave(self) -> None:
        self._left = True
        self._asked.release()

    def wait(self) -> None:
        """On CrewAI's thread, with a chunk: until the reader asks for more. Raises AgentRMError when he has left."""
        self._asked.acquire()
        if self._left:
            raise AgentRMError("whoever read this stream has closed it")


_reader: ContextVar[_Reader | None] = ContextVar("agentrm_crewai_reader", default=None)
_attempt: ContextVar[_Attempt | None] = ContextVar("agentrm_crewai_attempt", default=None)


@contextmanager
def _attempting() -> Iterator[_Attempt]:
    """Round one attempt: CrewAI's retries off, its counters heard."""
    attempt = _Attempt()
    ours = _attempt.set(attempt)
    theirs = None if _CREWAI_RETRIES is None else _CREWAI_RETRIES.set(True)
    try:
        yield attempt
    except AgentRMError as error:  # out of a chunk: what the frames below hold is the open connection
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        if theirs is not None:
            restore(theirs)
        restore(ours)


Answer = tuple[Any, Usage | None]


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_PLACES, args, strict=False)), **kwargs}


def _spec(gate: Gate, llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **more: Any) -> CallSpec:
    given = _given(args, kwargs)
    cls: Any = type(llm)
    said = (getattr(llm, name, None) for name in _limits(cls))
    limits = [int(limit) for limit in said if isinstance(limit, (int, float)) and 0 < limit < math.inf]
    return spec_of(
        gate,
        getattr(given.get("from_agent"), "role", None),
        kind="model",
        model=llm.model,
        input_tokens=estimate_tokens(given.get("messages")) + estimate_tokens(given.get("tools")),
        max_output_tokens=limits[0] if limits else None,
        **{"usage": _usage, "size": _size, **more},
    )


@lru_cache(maxsize=256)
def _limits(cls: type[BaseLLM]) -> tuple[str, ...]:
    """Those that an LLM of this class may have. Kept: it takes an object of pydantic's long to say that it has none."""
    if cls.model_config.get("extra") == "allow":
        return _LIMITS
    return tuple(name for name in _LIMITS if name in cls.model_fields or hasattr(cls, name))


def _usage(answer: Answer) -> Usage | None:
    return answer[1]


def _size(answer: Answer) -> int:
    said = answer[0]
    return estimate_tokens(said) or estimate_tokens(str(said))  # structured output, tool calls of a provider's types


def _streams(llm: Any) -> bool:
    return bool(llm._effective_stream() if hasattr(llm, "_effective_stream") else llm.stream)


def _call(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    native = cls.call

    @like(native)  # and so marked as one that CrewAI need not wrap in its retries
    def _(self: Any, *args: Any, **kwargs: Any) -> Any:
        def attempt() -> Answer:
            with _attempting() as made:
                return native(self, *args, **kwargs), made.usage

        def once() -> Any:
            return call(gate.rm, _spec(gate, self, args, kwargs, streams=_streams(self)), attempt)[0]

        try:
            return once()
        except Exception as error:
            if not _made_shorter(gate, self, args, kwargs, error):
                raise
        return once()

    return _


def _acall(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    native, blocking = cls.acall, cls.call
    is_async = native is not BaseLLM.acall

    @like(native)
    async def _(self: Any, *args: Any, **kwargs: Any) -> Any:
        async def attempt() -> Answer:
            with _attempting() as made:
                return await native(self, *args, **kwargs), made.usage

        def attempt_blocking() -> Answer:
            with _attempting() as made:
                return blocking(self, *args, **kwargs), made.usage

        async def once() -> Any:
            spec = _spec(gate, self, args, kwargs, streams=_streams(self))
            if is_async:
                return (await acall(gate.rm, spec, attempt))[0]
            return (await acall_blocking(gate.rm, spec, attempt_blocking))[0]

        try:
            return await once()
        except Exception as error:
            if not _made_shorter(gate, self, args, kwargs, error):
                raise
        return await once()

    _._crewai_rate_limit_wrapped = True  # type: ignore[attr-defined]
    return _


def _made_shorter(gate: Gate, llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> bool:
    """Whether the provider found an agent's history too long and it was compacted. CrewAI would end the agent's run
    without an answer after that."""
    given = _given(args, kwargs)
    messages: Any = given.get("messages")
    agent = given.get("from_agent")
    wanted = isinstance(messages, list) and getattr(agent, "respect_context_window", False)
    if not wanted or isinstance(error, AgentRMError) or not is_context_length_exceeded(error):
        return False
    compact(llm, messages, gate.rm.config.context.low)
    return True


def _stream_events(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    """The call that CrewAI makes behind the frames, in a thread that it joins, is an inner layer of the stream. It
    can't be stopped between two chunks: at the next one it finds that its reader has left."""
    native = cls.stream_events

    @like(native)
    def _(self: Any, *args: Any, **kwargs: Any) -> StreamSession[Any]:
        def frames() -> Iterator[StreamFrame]:
            inner, held, begun = native(self, *args, **kwargs), list[StreamFrame](), False
            reader = _Reader()
            _reader.set(reader)  # this runs in a context of its own
            reader.ask()
            try:
                for frame in inner:  # an announcement is no chunk: a call that is refused may begin again
                    begun = begun or frame.type not in ("llm_call_started", "llm_call_failed")
                    held.append(frame)
                    if begun:
                        yield from held
                        held.clear()
                    reader.ask()
                session._set_result(inner.result)
            finally:
                reader.leave()
                inner.close()

        spec = _spec(gate, self, args, kwargs, usage=_frame_usage, size=_frame_size)
        session: StreamSession[Any] = StreamSession(sync_iterator=stream(gate.rm, spec, frames))
        return session

    return _


def _frame_usage(frame: StreamFrame) -> Usage | None:
    return read_usage(frame.data)


def _frame_size(frame: StreamFrame) -> int:
    return estimate_tokens(frame.content)


def _model_dump(cls: type[Any]) -> Callable[..., dict[str, Any]]:
    """For a checkpoint, which takes whatever that gives as settings of an LLM. Of a class that CrewAI does not know it
    would be nothing that can be written or read: so it stands there as one that it does, until `attach` brings back the
    user's own."""

    @like(cls.model_dump)
    def _(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if args or kwargs or cls.__module__.startswith("crewai."):
            return cls.model_dump(self, *args, **kwargs)  # type: ignore[no-any-return]
        said = {name: getattr(self, name) for name in BaseLLM.model_fields}
        known = {name: value for name, value in said.items() if value is not None}
        return {**known, "llm_type": "openai", "additional_params": {}}

    return _


def _track(cls: type[Any]) -> Callable[..., Any]:
    native = cls._track_token_usage_internal

    @like(native)
    def _(self: Any, usage_data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        attempt, said = _attempt.get(), read_usage(usage_data)
        if attempt is not None and said is not None:
            attempt.usage = said if attempt.usage is None else attempt.usage.plus(said)
        native(self, usage_data, *args, **kwargs)

    return _


def _emit_chunk(cls: type[Any]) -> Callable[..., Any]:
    """Each chunk is progress. Raises the error of the lease if it was taken away, and OutputLimit."""
    native = cls._emit_stream_chunk_event

    @like(native)
    def _(self: Any, chunk: str, *args: Any, **kwargs: Any) -> None:
        attempt, reader = _attempt.get(), _reader.get()
        if reader is not None:  # the stream's own chunks are its progress
            reader.wait()
        elif attempt is not None and attempt.lease is not None:
            if attempt.lease.error is not None:
                raise attempt.lease.error
            progress(attempt.lease, attempt.meter, chunk)
        native(self, chunk, *args, **kwargs)

    return _


def _summarize_messages(gate: Gate) -> Callable[..., None]:
    @like(BaseLLM.summarize_messages)
    def _(self: Any, messages: list[Any], callbacks: list[Any], verbose: bool = True) -> None:
        compact(self, messages, gate.rm.config.context.low)

    return _


def _is_overflowing(gate: Gate) -> Callable[..., bool]:
    """CrewAI asks before each step, and leaves a request that stands alone as it is, however long: so it is shortened
    here."""
    native = BaseLLM.is_context_window_overflowing_threshold

    @like(native)
    def _(self: Any, messages: Any, *args: Any, **kwargs: Any) -> bool:
        overflows = native(self, messages, *args, **kwargs)
        if overflows and isinstance(messages, list) and is_lone_request(messages):
            compact(self, messages, gate.rm.config.context.low)
            overflows = native(self, messages, *args, **kwargs)
        return overflows

    return _


def _get_input_tokens_count() -> Callable[..., int]:
    """Counted here: some providers' classes ask the provider before every step, past every limit."""

    @like(BaseLLM.get_input_tokens_count)
    def _(self: Any, messages: Any, tools: Any = None, response_model: Any = None) -> int:
        return count(self, messages, tools)

    return _
