"""A chat client of the Agent Framework whose requests end in the conformance suite's provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agent_framework import BaseChatClient, ChatResponse, ChatResponseUpdate, Content, FunctionInvocationLayer, Message

from agentrm.adapters.conformance import Provider


def _details(usage: tuple[int, int] | None) -> Any:
    return usage and {"input_token_count": usage[0], "output_token_count": usage[1], "total_token_count": sum(usage)}


class StubClient(FunctionInvocationLayer, BaseChatClient):
    model = "stub"

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self.provider = provider

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        return self._build_response_stream(self._updates()) if stream else self._response()

    async def _response(self) -> ChatResponse:
        reply = await self.provider.acall()
        message = Message(role="assistant", contents=[reply.text])
        return ChatResponse(messages=[message], usage_details=_details(reply.usage))

    async def _updates(self) -> AsyncIterator[ChatResponseUpdate]:
        async for text, usage in self.provider.astream():
            yield ChatResponseUpdate(contents=[Content.from_text(text)], role="assistant")
            if usage is not None:
                yield ChatResponseUpdate(contents=[Content.from_usage(_details(usage))], role="assistant")
