"""A model context that is compacted when it grows too long, and is valid for a strict provider at any time.

AutoGen's own contexts cut where the count says, so a call can lose its result; and they forget what they cut. Here the
whole history stays, and what the model sees is made of it by `agentrm.context`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from autogen_core import Component
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import LLMMessage
from pydantic import BaseModel, TypeAdapter

from agentrm.context.compact import Compactor
from agentrm.context.convert_autogen import from_autogen, to_autogen
from agentrm.context.messages import Message
from agentrm.context.pairs import repair
from agentrm.errors import ConfigError

__all__ = ["MESSAGES", "CompactingContext"]

MESSAGES: TypeAdapter[list[LLMMessage]] = TypeAdapter(list[LLMMessage])


class CompactingContextConfig(BaseModel):
    """What a dumped `CompactingContext` consists of. The compactor is made anew."""

    max_tokens: int
    high: float
    low: float
    initial_messages: list[LLMMessage] | None = None


class CompactingContext(ChatCompletionContext, Component[CompactingContextConfig]):
    """What the model sees stays within `max_tokens`.

    Above `high` (a share of `max_tokens`) it is compacted in one batch down to `low`; between two compactions it only
    grows, which keeps the provider's prefix cache. Each tool call has its one result in its place, also where a run was
    broken off in the middle of a tool. Nothing is discarded: `history` is every message as it was added, and state that
    is saved holds both.

    `max_tokens`: what messages may take, without the system message and the tools' schemas, which the agent adds.
    `compactor`: one of `agentrm.context.compact`, with a summariser or a counter of your own.
    Raises ConfigError for shares that are not 0 < low <= high <= 1."""

    component_config_schema = CompactingContextConfig
    component_provider_override = "agentrm_autogen.CompactingContext"

    def __init__(
        self,
        max_tokens: int,
        *,
        high: float = 0.8,
        low: float = 0.5,
        compactor: Compactor | None = None,
        initial_messages: list[LLMMessage] | None = None,
    ) -> None:
        super().__init__(initial_messages)
        if type(max_tokens) is not int or max_tokens <= 0:
            raise ConfigError("CompactingContext.max_tokens", max_tokens, "a whole number of tokens above 0")
        if not 0 < low <= high <= 1:
            raise ConfigError("CompactingContext.low, high", (low, high), "shares with 0 < low <= high <= 1")
        self._max_tokens, self._high, self._low = max_tokens, high, low
        self._compactor = compactor or Compactor()
        self._forget()

    def _forget(self) -> None:
        self._view: list[Message] = []
        self._read, self._seen = 0, dict[str, int]()

    @property
    def history(self) -> Sequence[LLMMessage]:
        """Every message as it was added."""
        return tuple(self._messages)

    async def get_messages(self) -> list[LLMMessage]:
        """What the model should see now. Compaction runs on a thread of the loop's executor."""
        shown = self._caught_up()
        if self._compactor.counter.messages(shown) > self._high * self._max_tokens:
            target, before = int(self._low * self._max_tokens), self._view
            made = await asyncio.to_thread(self._compactor.compact, shown, target)
            if self._view is before:  # else somebody else's compaction, or another state, came first
                self._view = [*made.messages, *self._caught_up()[len(shown) :]]
        return to_autogen(repair(self._caught_up()).messages)

    def _caught_up(self) -> list[Message]:
        fresh = self._messages[self._read :]
        self._view += from_autogen(fresh, self._seen)
        self._read += len(fresh)
        return list(self._view)

    async def clear(self) -> None:
        await super().clear()
        self._forget()

    async def save_state(self) -> Mapping[str, Any]:
        """The history, and what the model sees of it: messages of the history by their ids, others whole."""
        native = {message.id: message for message in from_autogen(self._messages)}
        view = [m.id if native.get(m.id) == m else m.to_json() for m in self._caught_up()]
        return {"messages": MESSAGES.dump_python(self._messages, mode="json"), "view": view}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """State of this or of any context of AutoGen's own."""
        self._messages = MESSAGES.validate_python(state["messages"])
        self._forget()
        native = {message.id: message for message in self._caught_up()}
        if "view" in state:
            self._view = [native[m] if isinstance(m, str) else Message.from_json(m) for m in state["view"]]

    def _to_config(self) -> CompactingContextConfig:
        return CompactingContextConfig(
            max_tokens=self._max_tokens, high=self._high, low=self._low, initial_messages=self._initial_messages
        )

    @classmethod
    def _from_config(cls, config: CompactingContextConfig) -> CompactingContext:
        return cls(config.max_tokens, high=config.high, low=config.low, initial_messages=config.initial_messages)
