"""An AutoGen model client over a local engine, whose tool calls are always valid."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from autogen_core import CancellationToken, FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
    SystemMessage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from agentrm.errors import ConfigError
from agentrm.models import LocalEngine, Piece, Program, ToolSpec, Usage
from agentrm.models.streaming import iterate_in_thread
from agentrm.models.tools import Said, call_id, choice_of, turns, with_instructions

_OPTIONS = ("max_new_tokens", "temperature", "seed", "stop")


class LocalClient(ChatCompletionClient):
    """Text and at most one tool call a turn. `options`: max_new_tokens, temperature, seed, stop of every call, which
    `extra_create_args` of one call may change. `program`: whose KV is kept between the calls, one at a time."""

    component_type = "model"
    component_config_schema = BaseModel

    def __init__(self, engine: LocalEngine, *, program: Program | None = None, **options: Any) -> None:
        _check(options)
        self._engine, self._program, self._options = engine, program, options
        self._used = RequestUsage(prompt_tokens=0, completion_tokens=0)

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """The whole answer; arguments as AutoGen has them."""
        result: CreateResult | None = None
        stream = self.create_stream(
            messages, tools=tools, tool_choice=tool_choice, json_output=json_output,
            extra_create_args=extra_create_args, cancellation_token=cancellation_token,
        )  # fmt: skip
        async for part in stream:
            if isinstance(part, CreateResult):
                result = part
        assert result is not None
        return result

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """Text as it comes, then the result."""
        if json_output:
            raise ConfigError("json_output", json_output, "None: bind a tool whose schema is the wanted output")
        _check(extra_create_args)
        specs = [_spec(tool) for tool in tools]
        choice = tool_choice if isinstance(tool_choice, str) else tool_choice.name

        def start(dropped: Callable[[], bool]) -> Iterator[Piece]:
            def cancelled() -> bool:
                return dropped() or (cancellation_token is not None and cancellation_token.is_cancelled())

            return self._engine.respond(
                _turns(messages), specs, tool_choice=choice_of(choice), program=self._program, cancelled=cancelled,
                **{**self._options, **extra_create_args},
            )  # fmt: skip

        text, tool, usage = "", None, None
        pieces = iterate_in_thread(start)
        try:
            async for piece in pieces:
                text += piece.text
                tool, usage = piece.tool or tool, piece.usage or usage
                if piece.text and not tool:
                    yield piece.text
        finally:
            await pieces.aclose()
        assert usage is not None
        yield self._result(text, tool, usage)

    def _result(self, text: str, tool: str | None, usage: Usage) -> CreateResult:
        used = RequestUsage(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens)
        self._used.prompt_tokens += used.prompt_tokens
        self._used.completion_tokens += used.completion_tokens
        content: Any = text
        reason: Any = {"length": "length", "tool_calls": "function_calls"}.get(usage.finish_reason, "stop")
        if tool is not None:
            content = [FunctionCall(id=call_id(), name=tool, arguments=text)]
        return CreateResult(finish_reason=reason, content=content, usage=used, cached=False)

    async def close(self) -> None:
        """The engine is its owner's to close."""

    def actual_usage(self) -> RequestUsage:
        return self._used

    def total_usage(self) -> RequestUsage:
        return self._used

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        """Exactly how many input tokens a call with these messages and tools costs."""
        return self._engine.count_tokens(with_instructions(_turns(messages), [_spec(tool) for tool in tools]))

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self._engine.context - self.count_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
        )  # fmt: skip


def _turns(messages: Sequence[LLMMessage]) -> list[dict[str, str]]:
    """Raises ConfigError for images."""
    return turns(said for message in messages for said in _said(message))


def _said(message: LLMMessage) -> Iterator[Said]:
    if isinstance(message, SystemMessage):
        yield Said("system", message.content)
    elif isinstance(message, AssistantMessage):
        if isinstance(message.content, str):
            yield Said("assistant", message.content)
        else:
            yield Said("assistant", "", [(call.name, call.arguments) for call in message.content])
    elif isinstance(message, FunctionExecutionResultMessage):
        yield from (Said("user", result.content, result=True) for result in message.content)
    else:
        parts = [message.content] if isinstance(message.content, str) else message.content
        if any(isinstance(part, Image) for part in parts):
            raise ConfigError("messages", "an image", "text only")
        yield Said("user", "".join(str(part) for part in parts))


def _spec(tool: Tool | ToolSchema) -> ToolSpec:
    return ToolSpec.of(tool.schema if isinstance(tool, Tool) else tool)


def _check(options: Mapping[str, Any]) -> None:
    for key in options:
        if key not in _OPTIONS:
            raise ConfigError(key, options[key], "only " + ", ".join(_OPTIONS))
