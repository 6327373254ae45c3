"""A CrewAI LLM over a local engine, whose tool calls are always valid."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from crewai.llms.base_llm import BaseLLM
from pydantic import Field, PrivateAttr

from agentrm.adapters import on_thread
from agentrm.errors import ConfigError
from agentrm.models import LocalEngine, Program, ToolSpec
from agentrm.models.tools import call_text, result_text

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
            _turns(messages), [_spec(tool) for tool in tools or ()], max_new_tokens=self.max_new_tokens,
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
        return [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": tool, "arguments": text}}]

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        return await on_thread(lambda: self.call(*args, **kwargs))

    def supports_function_calling(self) -> bool:
        return True

    def supports_stop_words(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return self._engine.context


def _turns(messages: str | Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """CrewAI's messages as turns of text."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    told = []
    for message in messages:
        role, said = message["role"], message.get("content") or ""
        if isinstance(said, list):
            if any(part.get("type") != "text" for part in said):
                raise ConfigError("messages", "a part that is no text", "text only")
            said = "".join(part["text"] for part in said)
        if calls := message.get("tool_calls"):
            asked = [call["function"] for call in calls]
            said = "\n".join([said, *(call_text(one["name"], one["arguments"]) for one in asked)]).strip()
        if role == "tool":
            role, said = "user", result_text(said)
        told.append({"role": role, "content": said})
    return told


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], function.get("description", ""), json.loads(json.dumps(parameters)))
