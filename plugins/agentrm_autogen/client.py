"""A model client whose every call to its provider takes a lease."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from agentrm.adapters import CallSpec, acall, astream, without_client_retries
from agentrm_autogen.gating import Gate, make_gate, placed
from agentrm_autogen.sizes import (
    chunk_size,
    create_args,
    input_size,
    is_result,
    model_name,
    output_limit,
    result_size,
    usage,
)

__all__ = ["GatedClient", "gate_client"]


class GatedClientConfig(BaseModel):
    """What a dumped `GatedClient` consists of."""

    client: ComponentModel
    gate: dict[str, Any]
    client_retries: bool = False


class GatedClient(ChatCompletionClient, Component[GatedClientConfig]):
    """A model client whose calls go through a resource manager.

    Guarantees: one lease per call, from the call's start to its end or the stream's last chunk, close or drop; failures
    that can pass are tried again here with nothing held meanwhile, so the retries of the provider's own client are off
    (`client_retries=True` leaves them on); a cancellation token works while the call is queued too; an answer that says
    it was `cached` is not charged. Everything else is the client's own.

    `client` stays as it is: where retries have to be turned off a copy with the same connections is used, whose use is
    counted by itself. `options`: `agent`, `priority`, `tenant`, `session`, `pool`, `wait_max`, `idle_s`, `run_s`.
    Raises ConfigError for other names and values."""

    component_type = "model"
    component_config_schema = GatedClientConfig
    component_provider_override = "agentrm_autogen.GatedClient"
    gate: Gate
    client: ChatCompletionClient

    def __init__(self, rm: Any, client: ChatCompletionClient, *, client_retries: bool = False, **options: Any) -> None:
        self._start(make_gate(rm, "GatedClient", options), client, client_retries)

    def _start(self, gate: Gate, client: ChatCompletionClient, client_retries: bool) -> None:
        if isinstance(client, GatedClient) and gate.replaces(client.gate):  # not gated twice
            gate, client = gate.over(client.gate), client.client
        self.gate, self.client, self._client_retries = gate, client, client_retries
        self._calls = client if client_retries else _quiet(client)
        self._settings = create_args(self._calls)

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        cancellation_token: CancellationToken | None = None,
        **more: Any,
    ) -> CreateResult:
        """As the client's. Raises the provider's error once no further attempt makes sense, `AdmissionError` when the
        call was not admitted, `RunTimeout` or `IdleTimeout` when its lane was taken away."""
        spec = self._spec(messages, cancellation_token, more, result_size)

        async def call() -> CreateResult:
            return await self._calls.create(messages, cancellation_token=cancellation_token, **more)

        return await placed(self.gate, lambda: acall(self.gate.rm, spec, call))

    def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        cancellation_token: CancellationToken | None = None,
        **more: Any,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """As the client's; the lane is free when the final CreateResult is handed out. Raises as `create`; begun again
        only before its first chunk."""
        spec = self._spec(messages, cancellation_token, more, chunk_size)

        async def opened() -> AsyncGenerator[str | CreateResult, None]:
            token = _StreamToken(cancellation_token)
            try:
                async for chunk in self._calls.create_stream(messages, cancellation_token=token, **more):
                    yield chunk
            finally:
                await token.close()

        chunks = astream(self.gate.rm, spec, opened)
        return chunks if self.gate.caller is None else _Placed(self.gate, chunks)  # type: ignore[return-value]

    def _spec(
        self,
        messages: Sequence[LLMMessage],
        token: CancellationToken | None,
        more: Mapping[str, Any],
        size: Callable[[Any], int],
    ) -> CallSpec:
        """The client that gets the token too ends what runs; of the waiting before that it knows nothing."""
        settings = more.get("extra_create_args") or {}
        return self.gate.spec(
            kind="model",
            model=model_name(settings, self._settings),
            input_tokens=input_size(messages, more.get("tools") or ()),
            max_output_tokens=output_limit(settings, self._settings),
            usage=usage,
            size=size,
            is_last=is_result,
            on_wait=None if token is None else token.link_future,
        )

    async def close(self) -> None:
        await self._calls.close()

    def actual_usage(self) -> RequestUsage:
        return self._calls.actual_usage()

    def total_usage(self) -> RequestUsage:
        return self._calls.total_usage()

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self._calls.count_tokens(messages, tools=tools)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self._calls.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self._calls.capabilities

    @property
    def model_info(self) -> ModelInfo:
        return self._calls.model_info

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_calls":
            raise AttributeError(name)
        return getattr(self._calls, name)

    def _to_config(self) -> GatedClientConfig:
        return GatedClientConfig(
            client=self.client.dump_component(), gate=self.gate.to_config(), client_retries=self._client_retries
        )

    @classmethod
    def _from_config(cls, config: GatedClientConfig) -> GatedClient:
        client = ChatCompletionClient.load_component(config.client)
        return gate_client(Gate.from_config(config.gate), client, client_retries=config.client_retries)


def gate_client(gate: Gate, client: ChatCompletionClient, *, client_retries: bool = False) -> GatedClient:
    gated = GatedClient.__new__(GatedClient)
    gated._start(gate, client, client_retries)
    return gated


def _quiet(client: ChatCompletionClient) -> ChatCompletionClient:
    """The client without retries of its own: itself, or a copy where they had to be turned off."""
    twin: ChatCompletionClient = object.__new__(type(client))
    vars(twin).update(vars(client))
    return twin if without_client_retries(twin) else client


class _StreamToken(CancellationToken):
    """The user's token for one stream. A client links the future of its provider's stream first: that one has to be
    closed when nobody reads on, because the client only drops it, and the request would go on until the next collection
    of garbage."""

    def __init__(self, outer: CancellationToken | None) -> None:
        super().__init__()
        self._opening: asyncio.Future[Any] | None = None
        me = weakref.ref(self)  # the user's token lives longer than the stream
        if outer is not None:
            outer.add_callback(lambda: None if (token := me()) is None else token.cancel())

    def link_future(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self._opening = self._opening or future
        return super().link_future(future)

    async def close(self) -> None:
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return
        close = getattr(opening.result(), "close", None)
        if close is not None and asyncio.iscoroutinefunction(close):
            await close()


class _Placed:
    """A gated stream that asks for its lane where the call belongs."""

    __slots__ = ("_begun", "_chunks", "_gate")

    def __init__(self, gate: Gate, chunks: Any) -> None:
        self._gate, self._chunks, self._begun = gate, chunks, False

    def __aiter__(self) -> _Placed:
        return self

    async def __anext__(self) -> str | CreateResult:
        if self._begun:
            return await self._chunks.__anext__()  # type: ignore[no-any-return]
        self._begun = True
        return await placed(self._gate, self._chunks.__anext__)

    async def aclose(self) -> None:
        await self._chunks.aclose()
