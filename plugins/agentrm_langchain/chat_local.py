"""A LangChain chat model over a model in this process, whose tool calls are always valid."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, PrivateAttr

from agentrm.errors import ConfigError
from agentrm.models import LocalEngine, Piece, Program, ToolSpec, UnsupportedModel, Usage, catalog
from agentrm.models.streaming import iterate_in_thread
from agentrm.models.tools import Said, call_id, choice_of, turns, with_instructions

_PER_CALL = ("max_tokens", "temperature", "seed", "tools", "tool_choice")


class ChatLocal(BaseChatModel):
    """A model that runs in this process, from the catalogue of `agentrm models list` or from a path.

    Deterministic at temperature 0, and at any temperature with a `seed`. Every answer carries
    `usage_metadata`; a stream carries it on its last chunk. With tools bound the model makes at most one
    call a turn, and its arguments always fit the tool's schema; `tool_choice` may be auto, any, none or a
    tool's name. After `max_tool_rounds` calls since the user's last message "auto" means an answer, so that
    an agent of a weak model ends; None lifts that.

    The weights are loaded on the first call (a second, and several for importing torch) and shared between
    equal ChatLocals. Async calls run in a thread of their own: cancelling one frees the caller at once, and
    the computation stops at the next token. Only text is understood; other content is refused.
    """

    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: str | None = None
    threads: int | None = None
    """Threads of torch, which the whole process shares; None leaves them alone."""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=256, ge=1)
    """Most tokens of one answer."""
    seed: int | None = None
    stop: list[str] = Field(default_factory=list)
    max_tool_rounds: int | None = Field(default=4, ge=0)
    program: Program | None = None
    """Whose KV a conversation keeps between its calls (`LocalEngine.program`), one call at a time; without one, what
    equals the beginning of an earlier call is shared as long as there is room."""
    engine: LocalEngine | None = None
    """Use this engine, not one of `model`, `device`, `dtype` and `threads`."""

    _engine: LocalEngine | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "agentrm-local"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model", "device", "dtype", "temperature", "max_tokens", "seed", "stop", "max_tool_rounds")
        return {name: getattr(self, name) for name in names}

    def _resolve_model_profile(self) -> ModelProfile | None:
        profile = ModelProfile(tool_calling=True, tool_choice=True, text_inputs=True, image_inputs=False)
        context = catalog.context_of(self.model)
        if context is not None:
            profile["max_input_tokens"] = context
        return profile

    def local_engine(self) -> LocalEngine:
        """The engine, loaded if it is not yet. Raises the errors of `LocalEngine.load`."""
        if self.engine is not None:
            return self.engine
        if self._engine is None:
            self._engine = LocalEngine.shared(self.model, device=self.device, dtype=self.dtype, threads=self.threads)
        return self._engine

    def get_token_ids(self, text: str) -> list[int]:
        return self.local_engine().tokenizer.encode(text)

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
    ) -> int:
        """Exactly how many input tokens a call with these messages and tools costs."""
        specs = [_tool_spec(tool) for tool in tools or ()]
        return self.local_engine().count_tokens(with_instructions(_turns(messages), specs))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model with tools. Raises UnsupportedSchema for a schema whose arguments could not be
        guaranteed.

        `strict` and `parallel_tool_calls` are accepted for compatibility: calls are always strict, never
        parallel.
        """
        del strict, parallel_tool_calls
        described = [convert_to_openai_tool(tool) for tool in tools]
        names = [_tool_spec(tool).name for tool in described]
        choice = choice_of(tool_choice)
        if choice not in ("auto", "any", "none", *names):
            raise ConfigError("tool_choice", tool_choice, ", ".join(("auto", "any", "none", *names)))
        return self.bind(tools=described, tool_choice=choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return self._chunks(self._pieces(messages, stop, kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        def start(cancelled: Callable[[], bool]) -> Iterator[ChatGenerationChunk]:
            return self._chunks(self._pieces(messages, stop, kwargs, cancelled))

        chunks = iterate_in_thread(start)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    def _pieces(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        options: dict[str, Any],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Piece]:
        for key in options:
            if key not in _PER_CALL:
                raise ConfigError(key, options[key], f"only {', '.join(_PER_CALL)} and stop for one call")
        tools = [_tool_spec(tool) for tool in options.get("tools") or ()]
        choice = choice_of(options.get("tool_choice"))
        if choice == "auto" and self.max_tool_rounds is not None:
            if _rounds_since_user(messages) >= self.max_tool_rounds:
                choice = "none"
        return self.local_engine().respond(
            _turns(messages),
            tools,
            tool_choice=choice,
            max_new_tokens=options.get("max_tokens", self.max_tokens),
            temperature=options.get("temperature", self.temperature),
            seed=options.get("seed", self.seed),
            stop=[*self.stop, *(stop or ())],
            program=self.program,
            cancelled=cancelled,
        )

    def _chunks(self, pieces: Iterator[Piece]) -> Iterator[ChatGenerationChunk]:
        opened = False
        for piece in pieces:
            if piece.usage is not None:
                yield self._last_chunk(piece.text, piece.usage)
            elif piece.tool is not None:
                call = tool_call_chunk(
                    name=None if opened else piece.tool,
                    args=piece.text,
                    id=None if opened else call_id(),
                    index=0,
                )
                opened = True
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
            else:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece.text))

    def _last_chunk(self, text: str, usage: Usage) -> ChatGenerationChunk:
        counted: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        if usage.cached_tokens:
            counted["input_token_details"] = {"cache_read": usage.cached_tokens}
        message = AIMessageChunk(content=text, usage_metadata=cast("UsageMetadata", counted), chunk_position="last")
        info = {"finish_reason": usage.finish_reason, "model_name": self.model, "model_provider": "agentrm"}
        return ChatGenerationChunk(message=message, generation_info=info)


def _tool_spec(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> ToolSpec:
    return ToolSpec.of(convert_to_openai_tool(tool))


def _rounds_since_user(messages: Sequence[BaseMessage]) -> int:
    rounds = 0
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        rounds += isinstance(message, AIMessage) and bool(message.tool_calls)
    return rounds


def _turns(messages: Sequence[BaseMessage]) -> list[dict[str, str]]:
    return turns(map(_said, messages))


def _said(message: BaseMessage) -> Said:
    calls: list[tuple[str, Any]] = []
    if isinstance(message, AIMessage):
        calls = [(call["name"], call["args"]) for call in message.tool_calls]
        calls += [(call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    return Said(_role(message), _text(message), calls, isinstance(message, ToolMessage | FunctionMessage))


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    if isinstance(message, SystemMessage):
        return "system"
    return "assistant" if isinstance(message, AIMessage) else "user"


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = []
    for block in message.content:
        if isinstance(block, str):
            parts.append(block)
        elif block.get("type") == "text":
            parts.append(block["text"])
        elif block.get("type") not in ("tool_use", "tool_call", "function_call"):  # in tool_calls as well
            raise UnsupportedModel("message content", block.get("type"), "text")
    return "".join(parts)
