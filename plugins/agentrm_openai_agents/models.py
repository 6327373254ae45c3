"""A model of the Agents SDK, and a provider of models, whose every call takes a lease."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Model, ModelProvider, ModelResponse
from agents.items import TResponseStreamEvent

from agentrm.adapters import CallSpec, Usage, acall, astream, estimate_tokens, read_usage, without_client_retries
from agentrm.adapters.copies import Gate
from agentrm.adapters.identity import Identity, first_answers
from agentrm.identity import current_identity

__all__ = ["GatedModel", "GatedProvider", "spec_of"]

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


def spec_of(gate: Gate, agent: str | None, **call: Any) -> CallSpec:
    """The call that begins here; `agent` is what the SDK calls the one that makes it."""
    return gate.call(first_answers(gate.arguments, current_identity(), Identity(agent=agent)), **call)


class GatedModel(Model):
    """A model whose calls go through a resource manager: one lease per response, held by a stream to its last event,
    its close or its drop. Failures that can pass are tried again with nothing held meanwhile, so the retries of the
    client are off.

    `find` returns the model when it is first called: one that is known by its name alone needs a key only then."""

    def __init__(self, gate: Gate, find: Callable[[], Model], agent: str | None = None) -> None:
        self.gate, self.agent = gate, agent
        self._find = find
        self._found: Any = None

    @property
    def model(self) -> Any:
        """The model below."""
        if self._found is None:
            found: Any = self._find()
            quiet = copy.copy(found)
            self._found = quiet if without_client_retries(quiet) else found
        return self._found

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        model = self.model
        spec = self._spec(model, args, kwargs, usage=read_usage, size=lambda response: estimate_tokens(response.output))
        return await acall(self.gate.rm, spec, lambda: model.get_response(*args, **kwargs))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        model = self.model
        spec = self._spec(
            model,
            args,
            kwargs,
            usage=_usage,
            size=lambda event: estimate_tokens(delta) if isinstance(delta := getattr(event, "delta", None), str) else 0,
            is_last=lambda event: getattr(event, "type", None) in _LAST,
        )
        return astream(self.gate.rm, spec, lambda: model.stream_response(*args, **kwargs))

    def _spec(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **readers: Any) -> CallSpec:
        named = dict(zip(("system_instructions", "input", "model_settings", "tools"), args, strict=False)) | kwargs
        tools = [(tool.name, getattr(tool, "params_json_schema", None)) for tool in named.get("tools") or ()]
        name, limit = getattr(model, "model", None), getattr(named.get("model_settings"), "max_tokens", None)
        return spec_of(
            self.gate,
            self.agent,
            kind="model",
            model=name if isinstance(name, str) else None,
            input_tokens=max(1, estimate_tokens((named.get("system_instructions"), named.get("input"), tools))),
            max_output_tokens=limit if isinstance(limit, int) and limit > 0 else None,
            **readers,
        )

    def get_retry_advice(self, request: Any) -> Any:
        return self.model.get_retry_advice(request)

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        if self._found is not None:
            await self._found._cleanup_on_run_end(owner)


class GatedProvider(ModelProvider):
    """A provider whose models are gated."""

    def __init__(self, gate: Gate, provider: ModelProvider) -> None:
        self.gate, self.provider = gate, provider

    def get_model(self, model_name: str | None) -> Model:
        return GatedModel(self.gate, lambda: self.provider.get_model(model_name))

    async def aclose(self) -> None:
        await self.provider.aclose()


def _usage(event: Any) -> Usage | None:
    return read_usage(response) if (response := getattr(event, "response", None)) is not None else None
