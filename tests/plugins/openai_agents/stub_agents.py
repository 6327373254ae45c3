"""Models of the Agents SDK whose calls end in the conformance suite's provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, ModelSettings, ModelTracing, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from agentrm.adapters.conformance import Provider

ASKED: dict[str, Any] = {
    "system_instructions": None,
    "input": "hello",
    "model_settings": ModelSettings(),
    "tools": [],
    "output_schema": None,
    "handoffs": [],
    "tracing": ModelTracing.DISABLED,
    "previous_response_id": None,
    "conversation_id": None,
    "prompt": None,
}


def message(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="1", content=[part], role="assistant", status="completed", type="message")


class StubModel(Model):
    model = "stub"

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        reply = await self.provider.acall()
        usage = Usage() if reply.usage is None else Usage(requests=1, input_tokens=reply.usage[0], output_tokens=reply.usage[1])
        return ModelResponse([message(reply.text)], usage, None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        text, last = "", None
        async for chunk, usage in self.provider.astream():
            text, last = text + chunk, usage
            yield ResponseTextDeltaEvent(
                content_index=0, delta=chunk, item_id="1", logprobs=[], output_index=0, sequence_number=0,
                type="response.output_text.delta",
            )  # fmt: skip
        yield ResponseCompletedEvent(response=_response(text, last), sequence_number=1, type="response.completed")


def _response(text: str, usage: tuple[int, int] | None) -> Response:
    told = usage and ResponseUsage.model_construct(input_tokens=usage[0], output_tokens=usage[1], total_tokens=sum(usage))
    return Response.model_construct(id="1", output=[message(text)], usage=told, object="response")
