"""A CrewAI LLM over a local engine, whose tool calls are always valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crewai.llms.base_llm import BaseLLM
from pydantic import Field, PrivateAttr

from agentrm.adapters import on_thread
from agentrm.errors import ConfigError
from agentrm.models import LocalEngine, Program, ToolSpec
from agentrm.models.tools import Said, call_id, turns

__all__ = ["LocalLLM"]


class LocalLLM(BaseLLM):
    """Text, or one tool call a turn. The engine schedules its calls by itself, so this one needs no `attach`.

    `program`: whose KV is kept between the calls, one at a time. `max_new_tokens`, `temperature`, `seed`: of each call.
    Raises ConfigError for messages that hold more than text, and for `response_model`: give the agent a tool whose
    schema is the wanted output."""

    max_new_tokens: int = Field(default=256, gt=0)
    _engine: LocalEngine = PrivateAttr()
    _program: Program | None = PrivateAttr(default=None)

    def __init__(self, engine: LocalEngine, *, program: Program | None = None, **options: Any) -> None:
        super().__init__(**{"model": "local", "provider": "agentrm", **options})
        self._engine, self._program = engine, program

    def call(
        self,
        messages: str | list[Any],
        tools: list[dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        """The answer as text, or a list with one tool call, which CrewAI makes."""
        if response_model is not None:
            raise ConfigError("response_model", response_model.__name__, "None: give the agent a tool with that schema")
        pieces = self._engine.respond(
            _turns(messages), [ToolSpec.of(tool) for tool in tools or ()], max_new_tokens=self.max_new_tokens,
            temperature=self.temperature or 0.0, seed=self.seed, stop=self.stop_sequences, program=self._program,
        )  # fmt: skip
        text, tool, usage = "", None, None
        for piece in pieces:
            text += piece.text
            tool, usage = piece.tool or tool, piece.usage or usage
        if usage is not None:
            self._track_token_usage_internal(
                {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
            )
        if tool is None:
            return text
        return [{"id": call_id(), "type": "function", "function": {"name": tool, "arguments": text}}]

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        return await on_thread(lambda: self.call(*args, **kwargs))

    def supports_function_calling(self) -> bool:
        return True

    def supports_stop_words(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return self._engine.context


def _turns(messages: str | Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return turns(map(_said, messages))


def _said(message: Mapping[str, Any]) -> Said:
    text = message.get("content") or ""
    if isinstance(text, list):
        if any(part.get("type") != "text" for part in text):
            raise ConfigError("messages", "a part that is no text", "text only")
        text = "".join(part["text"] for part in text)
    asked = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(one["name"], one["arguments"]) for one in asked]
    return Said(message["role"], text, calls, message["role"] == "tool")
