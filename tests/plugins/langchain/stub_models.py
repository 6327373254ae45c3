"""Chat models of LangChain's own classes whose requests end in the conformance suite's provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import ConfigDict

from agentrm.adapters.conformance import Provider

__all__ = ["AsyncStubChat", "StubChat", "result_of"]


def _usage(counts: tuple[int, int] | None) -> Any:
    if counts is None:
        return None
    return {"input_tokens": counts[0], "output_tokens": counts[1], "total_tokens": sum(counts)}


def result_of(text: str, usage: tuple[int, int] | None = (11, 7), **more: Any) -> ChatResult:
    message = AIMessage(text, usage_metadata=_usage(usage), **more)
    return ChatResult(generations=[ChatGeneration(message=message)])


def chunk_of(text: str, usage: tuple[int, int] | None) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(text, usage_metadata=_usage(usage)))


class StubChat(BaseChatModel):
    """A model with sync code alone, like most small integrations."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    provider: Provider
    model: str = "stub-1"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        reply = self.provider.call()
        return result_of(reply.text, reply.usage)

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for text, usage in self.provider.stream():
            yield chunk_of(text, usage)

    @property
    def _llm_type(self) -> str:
        return "stub"


class AsyncStubChat(StubChat):
    """A model with async code of its own."""

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        reply = await self.provider.acall()
        return result_of(reply.text, reply.usage)

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for text, usage in self.provider.astream():
            yield chunk_of(text, usage)
