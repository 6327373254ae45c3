"""Any LangChain chat model as an LLM core of an `agentrm.models.CorePool`."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk

from agentrm.models import Piece, ToolSpec, Traits, Usage
from agentrm.models.cores import Messages


class LangChainCore:
    """A chat model that the pool admits to. It should not retry by itself (`max_retries=0`)."""

    def __init__(self, model: BaseChatModel, traits: Traits, *, name: str) -> None:
        self._model, self.name, self.traits = model, name, traits

    def load(self) -> None:
        return None

    def respond(
        self,
        messages: Messages,
        tools: Sequence[ToolSpec] = (),
        *,
        tool_choice: str = "auto",
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = lambda: False,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Core.respond`. Tokens, temperature and seed go to the model as it spells them (`max_tokens`)."""
        model: Any = self._model
        if tools:
            described = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
                }
                for t in tools
            ]
            model = model.bind_tools(described, tool_choice=tool_choice)
        options: dict[str, Any] = {"max_tokens": max_new_tokens, "temperature": temperature}
        if seed is not None:
            options["seed"] = seed
        turns = [(message["role"], message["content"]) for message in messages]
        whole: AIMessageChunk | None = None
        tool, ended = None, False
        for chunk in model.stream(turns, stop=list(stop) or None, **options):
            whole = chunk if whole is None else whole + chunk
            if isinstance(chunk.content, str) and chunk.content:
                yield Piece(chunk.content)
            for call in chunk.tool_call_chunks:
                tool = call["name"] or tool
                yield Piece(call["args"] or "", tool=tool)
            if cancelled():
                ended = True
                break
        counted = None if whole is None else whole.usage_metadata
        reason: Any = "cancelled" if ended else "tool_calls" if tool else "stop"
        if counted is None:  # the model does not say: an estimate, never nothing
            sent = sum(len(message["content"]) for message in messages)
            came = len(str(whole.content) + json.dumps(whole.tool_calls)) if whole is not None else 0
            yield Piece("", usage=Usage(sent // 4 + 1, came // 4 + 1, reason))
        else:
            yield Piece("", usage=Usage(counted["input_tokens"], counted["output_tokens"], reason))
