"""Transports of httpx (and httpx2) through which each request to a model takes a lease."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from agentrm.adapters import FrameworkMissing, read_options
from agentrm.adapters.copies import Gate
from agentrm_openai.sending import asend, send

__all__ = ["gated_async_transport", "gated_transport"]


def gated_transport(rm: Any, inner: Any = None, **options: Any) -> Any:
    """A transport for `httpx.Client`, `inner` (default: the usual one of httpx, of httpx2 where only that is installed)
    behind a lease for each request whose JSON names a model. Turn the retries of the client above it off
    (`max_retries=0`): the gate retries.

    `options` as in `gate_client`. Raises ConfigError for other names and values."""
    gate = Gate(rm, *read_options("gated_transport", options))
    if inner is None:
        inner = _installed().HTTPTransport()
    return _subclass(inner, "BaseTransport", _Transport)(gate, inner)


def gated_async_transport(rm: Any, inner: Any = None, **options: Any) -> Any:
    """The same for `httpx.AsyncClient`."""
    gate = Gate(rm, *read_options("gated_async_transport", options))
    if inner is None:
        inner = _installed().AsyncHTTPTransport()
    return _subclass(inner, "AsyncBaseTransport", _AsyncTransport)(gate, inner)


def _installed() -> Any:
    """httpx; openai 3 comes with httpx2 instead. Raises FrameworkMissing where there is neither."""
    for library in ("httpx", "httpx2"):
        try:
            return import_module(library)
        except ModuleNotFoundError:
            continue
    raise FrameworkMissing("agentrm_openai", "httpx", "openai")


def _subclass(inner: Any, base: str, ours: type) -> type:
    """Ours as a transport of the library that `inner` belongs to."""
    names = [cls.__module__.partition(".")[0] for cls in type(inner).__mro__]
    library = import_module("httpx2" if "httpx2" in names else "httpx")
    return type(ours.__name__, (ours, getattr(library, base)), {})


class _Transport:
    def __init__(self, gate: Gate, inner: Any) -> None:
        self._gate, self._inner = gate, inner

    def handle_request(self, request: Any) -> Any:
        return send(self._gate, request, lambda: _with_request(self._inner.handle_request(request), request))

    def close(self) -> None:
        self._inner.close()


class _AsyncTransport:
    def __init__(self, gate: Gate, inner: Any) -> None:
        self._gate, self._inner = gate, inner

    async def handle_async_request(self, request: Any) -> Any:
        async def go() -> Any:
            return _with_request(await self._inner.handle_async_request(request), request)

        return await asend(self._gate, request, go)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _with_request(response: Any, request: Any) -> Any:
    """A response knows its request; a client says so only after its transport returned."""
    response.request = request
    return response
