"""A chat client whose every request to its model takes a lease."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from agentrm.adapters import CallSpec, Usage, acall, astream, estimate_text, estimate_tokens, without_client_retries
from agentrm.adapters.copies import Gate, turn
from agentrm_maf.gating import make_gate

__all__ = ["gate_client", "gate_client_with"]

C = TypeVar("C")
_PER_MESSAGE = 4


def gate_client(rm: Any, client: C, **options: Any) -> C:
    """A copy of `client` that goes through `rm`; `client` itself stays as it is.

    One lease for each request to the model, within the framework's own loop over tool calls: nothing is held while
    tools run. A stream holds its lane until its last update, its close or its drop. Failures that can pass are tried
    again here with nothing held meanwhile, so the retries of the provider's client are off. `options`: `agent`,
    `priority`, `tenant`, `session`, `pool`, `wait_max`, `idle_s`, `run_s`. Raises ConfigError for other names and
    values."""
    return gate_client_with(make_gate(rm, "gate_client", options), client)


def gate_client_with(gate: Gate, client: C) -> C:
    gated = copy.copy(client)
    without_client_retries(gated)
    turn(gated, gate, _methods)
    return gated


def _methods(cls: type[Any], gate: Gate) -> dict[str, Any]:
    def _inner_get_response(
        self: Any, *, messages: Sequence[Any], stream: bool, options: Mapping[str, Any], **more: Any
    ) -> Any:
        asked = {"messages": messages, "options": options, **more}
        spec = _spec(gate, self, messages, options)
        if stream:
            return _stream(cls, gate, self, spec, asked)
        return acall(gate.rm, spec, lambda: cls._inner_get_response(self, stream=False, **asked))

    return {"_inner_get_response": _inner_get_response}


def _stream(cls: type[Any], gate: Gate, client: Any, spec: CallSpec, asked: dict[str, Any]) -> Any:
    """As the client's own, whose parts are made once the lane is there."""
    updates = astream(gate.rm, spec, lambda: cls._inner_get_response(client, stream=True, **asked))
    return client._build_response_stream(updates, response_format=asked["options"].get("response_format"))


def _spec(gate: Gate, client: Any, messages: Sequence[Any], options: Mapping[str, Any]) -> CallSpec:
    model = options.get("model") or getattr(client, "model", None)
    limit = options.get("max_tokens")
    tools = [(getattr(tool, "name", None), getattr(tool, "description", None)) for tool in options.get("tools") or ()]
    size = sum(_PER_MESSAGE + _size(message) for message in messages) + estimate_tokens(tools)
    return gate.spec(
        kind="model",
        model=model if isinstance(model, str) else None,
        input_tokens=max(1, size + estimate_tokens(options.get("instructions"))),
        max_output_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        usage=_usage,
        size=_size,
    )


def _size(said: Any) -> int:
    """Tokens of a message, an update or a response, estimated."""
    messages = getattr(said, "messages", None)
    if messages is not None:
        return sum(map(_size, messages))
    total = 0
    for content in said.contents:
        texts = (getattr(content, name, None) for name in ("text", "name", "arguments", "result"))
        total += sum(estimate_text(text) if isinstance(text, str) else estimate_tokens(text) for text in texts)
    return total


def _usage(said: Any) -> Usage | None:
    """A response carries its use; of a stream the update with a content of that kind does."""
    told = getattr(said, "usage_details", None)
    if told is None:
        found = [c.usage_details for c in getattr(said, "contents", ()) if getattr(c, "usage_details", None)]
        told = found[-1] if found else {}
    inputs, outputs = told.get("input_token_count") or 0, told.get("output_token_count") or 0
    return Usage(inputs, outputs, told.get("cache_read_input_token_count") or 0) if inputs or outputs else None


