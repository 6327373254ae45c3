"""A client of OpenAI whose every request to a model takes a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import openai

from agentrm.adapters import read_options
from agentrm.adapters.copies import Gate, turn
from agentrm.errors import AgentRMError
from agentrm_openai.sending import asend, send

__all__ = ["gate_client"]

C = TypeVar("C")


def gate_client(rm: Any, client: C, **options: Any) -> C:
    """A copy of `client`, over the same connections, that goes through `rm`; `client` itself stays as it is.

    Chat completions, responses, completions, embeddings: whatever names a model takes one lease, streams to their last
    event, close or drop. The client's own retries, which sleep with the lane in hand, are off: failures that can pass
    are tried again with nothing held meanwhile. Errors of agentrm come as they are, and are `openai.OpenAIError` as
    well. `with_options` and `copy` of the result are gated too.

    `options`: `agent`, `priority`, `tenant`, `session`, `pool`, `wait_max`, `idle_s`, `run_s`. Raises ConfigError for
    other names and values."""
    gated: Any = client.with_options(max_retries=0)  # type: ignore[attr-defined]
    turn(gated, Gate(rm, *read_options("gate_client", options)), _methods)
    return gated  # type: ignore[no-any-return]


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    make = _asend_request if issubclass(cls, openai.AsyncOpenAI) else _send_request
    return {"_send_request": make(cls, gate)}


def _send_request(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    def _send_request(self: Any, request: Any, *, stream: bool, **more: Any) -> Any:
        response = send(gate, request, lambda: cls._send_request(self, request, stream=True, **more), _translate)
        if not stream:
            response.read()
        return response

    return _send_request


def _asend_request(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    async def _send_request(self: Any, request: Any, *, stream: bool, **more: Any) -> Any:
        response = await asend(gate, request, lambda: cls._send_request(self, request, stream=True, **more), _translate)
        if not stream:
            await response.aread()
        return response

    return _send_request


_twins: dict[type, type] = {}


def _translate(error: AgentRMError) -> AgentRMError:
    """The same error as one of the client's own: those it hands on, all others it takes for lost connections."""
    cls = type(error)
    if not isinstance(error, openai.OpenAIError):
        twin = _twins.get(cls)
        if twin is None:
            names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
            names["__reduce__"] = lambda twin: (_unpickled, (cls, twin.args, vars(twin)))
            twin = _twins[cls] = type(cls.__name__, (cls, openai.OpenAIError), names)
        error.__class__ = twin
    return error


def _unpickled(cls: type[AgentRMError], args: tuple[object, ...], state: dict[str, object]) -> AgentRMError:
    return _translate(cls.rebuilt(args, state))
