"""A chat or completion model whose every call to its provider takes a lease, and is otherwise the user's
own model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from langchain_core.language_models.chat_models import BaseChatModel, SimpleChatModel
from langchain_core.language_models.llms import LLM, BaseLLM

from agentrm.adapters import (
    CallSpec,
    acall,
    acall_blocking,
    astream,
    astream_blocking,
    call,
    stream,
    without_client_retries,
)
from agentrm_langchain.errors import translate
from agentrm_langchain.gating import Gate, gated_copy, like, make_gate, plain_view
from agentrm_langchain.sizes import (
    ends_message,
    input_size,
    model_name,
    output_limit,
    response_headers,
    result_size,
    result_usage,
)
from agentrm_langchain.surroundings import Surroundings, seen, within

__all__ = ["gate_model", "gate_model_with", "is_model"]

M = TypeVar("M", BaseChatModel, BaseLLM)

_HANDED = "agentrm_surroundings"
_BASES = (BaseChatModel, SimpleChatModel, BaseLLM, LLM)
_EVENTS, _ASYNC_EVENTS = "_stream_chat_model_events", "_astream_chat_model_events"


def gate_model(rm: Any, model: M, *, client_retries: bool = False, **options: Any) -> M:
    """A copy of `model` that goes through `rm`; `model` itself stays as it is.

    Class, cache key, tool binding, structured output, retry and fallback wrappers, profile and streaming
    are the model's own. A call waits for its lane where the model would call its provider: after the cache
    (cached answers cost nothing), inside every framework's retry. Failures that can pass are retried here,
    with nothing held meanwhile, so the retries of the provider's client, which sleep with the lane in hand,
    are turned off unless `client_retries`.

    `options`: `agent`, `priority`, `tenant`, `session` (default: found out at each call, see
    docs/langchain.md); `pool`, `wait_max`, `idle_s`, `run_s` (default: the configuration); `guards`
    (`rm.guard(...)`, which watch tools; default: those in force). Raises ConfigError for other names and values."""
    return gate_model_with(make_gate(rm, "gate_model", options), model, client_retries=client_retries)


def gate_model_with(gate: Gate, model: M, *, client_retries: bool = False) -> M:
    gated = gated_copy(model, gate, _methods)
    if not client_retries:
        without_client_retries(gated)
    return gated


def is_model(x: object) -> bool:
    return isinstance(x, (BaseChatModel, BaseLLM))


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    methods = {
        "_generate": _generate(cls, gate),
        "_agenerate": _agenerate(cls, gate),
        "invoke": _invoke(cls),
        "ainvoke": _ainvoke(cls),
        "stream": _stream_public(cls, "stream"),
        "astream": _stream_public(cls, "astream"),
    }
    streams, streams_async = _overrides(cls, "_stream"), _overrides(cls, "_astream")
    if streams:  # only then: whether a model streams is read off its class
        methods["_stream"] = _stream(cls, gate, "_stream")
    if streams_async:
        methods["_astream"] = _astream(cls, gate, "_astream")
    elif streams:
        methods["_astream"] = _astream_of_sync(cls, gate)
    if getattr(cls, _EVENTS, None) is not None:
        methods[_EVENTS] = _stream(cls, gate, _EVENTS)
    if getattr(cls, _ASYNC_EVENTS, None) is not None:
        methods[_ASYNC_EVENTS] = _astream(cls, gate, _ASYNC_EVENTS)
    return methods


def _overrides(cls: type, name: str) -> bool:
    own = getattr(cls, name)
    return all(own is not getattr(base, name, None) for base in _BASES if base is not cls)


def _spec(gate: Gate, model: Any, args: tuple[Any, ...], settings: dict[str, Any]) -> CallSpec:
    prompt = args[0] if args else settings.get("messages", settings.get("prompts", settings.get("prompt", ())))
    handed: Surroundings | None = settings.pop(_HANDED, None)
    return gate.spec(
        handed,
        kind="model",
        model=model_name(model, settings),
        input_tokens=input_size(prompt, settings),
        max_output_tokens=output_limit(model, settings),
        usage=result_usage,
        size=result_size,
        usage_adds=True,  # the chunks' usage_metadata does
        is_last=ends_message,
        headers=response_headers,
        translate=translate,
    )


def _generate(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls._generate)  # the core looks at the signature
    def _generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = plain_view(self, cls)
        return call(gate.rm, _spec(gate, self, args, kwargs), lambda: plain._generate(*args, **kwargs))

    return _generate


def _agenerate(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    """A class without async code of its own gets the thread that it would get, but not while it is queued,
    and from us: the loop's default executor is small, and a cancelled call would go on there unseen."""
    is_async = _overrides(cls, "_agenerate")

    @like(cls._agenerate)
    async def _agenerate(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = plain_view(self, cls)
        spec = _spec(gate, self, args, kwargs)
        if is_async:
            return await acall(gate.rm, spec, lambda: plain._agenerate(*args, **kwargs))
        args, kwargs = _for_sync(args, kwargs)
        return await acall_blocking(gate.rm, spec, lambda: plain._generate(*args, **kwargs))

    return _agenerate


def _stream(cls: type[Any], gate: Gate, name: str) -> Callable[..., Any]:
    native = getattr(cls, name)

    @like(native)
    def gated(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        plain = plain_view(self, cls)
        return stream(gate.rm, _spec(gate, self, args, kwargs), lambda: native(plain, *args, **kwargs))

    return gated


def _astream(cls: type[Any], gate: Gate, name: str) -> Callable[..., Any]:
    native = getattr(cls, name)

    @like(native)
    def gated(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        plain = plain_view(self, cls)
        return astream(gate.rm, _spec(gate, self, args, kwargs), lambda: native(plain, *args, **kwargs))

    return gated


def _astream_of_sync(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    native = cls._stream

    @like(cls._astream)
    def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        plain = plain_view(self, cls)
        spec = _spec(gate, self, args, kwargs)
        args, kwargs = _for_sync(args, kwargs)
        return astream_blocking(gate.rm, spec, lambda: native(plain, *args, **kwargs))

    return _astream


def _for_sync(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The callback manager of an async call in the form that a sync method takes."""

    def sync(value: Any) -> Any:
        return value.get_sync() if hasattr(value, "get_sync") else value

    return tuple(map(sync, args)), {name: sync(value) for name, value in kwargs.items()}


# The config of a bare `model.invoke(x, config)` reaches no method below: it is kept where `_spec` finds it.
# For streams it travels as a keyword, because a context variable may not be set across a yield.


def _invoke(cls: type[Any]) -> Callable[..., Any]:
    @like(cls.invoke)
    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        if not config:
            return cls.invoke(self, input, config, **kwargs)
        with within(config):
            return cls.invoke(self, input, config, **kwargs)

    return invoke


def _ainvoke(cls: type[Any]) -> Callable[..., Any]:
    @like(cls.ainvoke)
    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        if not config:
            return await cls.ainvoke(self, input, config, **kwargs)
        with within(config):
            return await cls.ainvoke(self, input, config, **kwargs)

    return ainvoke


def _stream_public(cls: type[Any], name: str) -> Callable[..., Any]:
    native = getattr(cls, name)
    under = "_stream" if name == "stream" else "_astream"

    @like(native)
    def public(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        streams = _overrides(cls, under) or _overrides(cls, "_stream")
        if streams and _says_something(config):
            kwargs[_HANDED] = Surroundings(config, seen().runtime)
        return native(self, input, config, **kwargs)

    return public


def _says_something(config: Any) -> bool:
    parts = [(config or {}).get(part) or {} for part in ("configurable", "metadata")]
    return any(str(key).startswith("agentrm_") for part in parts for key in part)
