"""How tools, calls and results are told to a model that knows only turns of text, and how it makes a call.

The wording is the `<tool_call>` convention that open models are trained on (Hermes, Qwen, SmolLM2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrm.models.constrained import ConstrainedWriter
from agentrm.models.schema import Node, compile_schema, shortest

ANSWER = "answer the user"  # has blanks, which no tool's name has


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. `parameters` is a JSON schema of an object; it is compiled (and refused)
    here.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    arguments: Node = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", compile_schema(self.parameters))


def instructions(tools: Sequence[ToolSpec]) -> str:
    """What the system message says about the tools."""
    described = "\n".join(
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            ensure_ascii=False,
        )
        for tool in tools
    )
    return (
        "You can call these tools:\n<tools>\n" + described + "\n</tools>\n"
        'To call one, write <tool_call>{"name": <name>, "arguments": <arguments>}</tool_call>.'
    )


def with_instructions(
    messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSpec]
) -> list[Mapping[str, str]]:
    """The messages with the tools told in the system message, which is added where there is none."""
    if not tools:
        return list(messages)
    text = instructions(tools)
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def call_text(name: str, arguments: str) -> str:
    """A call as it stands in the assistant's turn; `arguments` is JSON."""
    return f"{_opening(name)}{arguments}}}\n</tool_call>"


def result_text(name: str, content: str) -> str:
    """A tool's result as it stands in the turn after the call."""
    return f"<tool_response>\n{json.dumps({'name': name}, ensure_ascii=False)}\n{content}\n</tool_response>"


def decide(
    writer: ConstrainedWriter, tools: Sequence[ToolSpec], *, may_answer: bool
) -> tuple[ToolSpec | None, int]:
    """Asks the model which tool it calls, None for an answer. Returns that and what the question cost, in
    tokens.

    The question leaves no trace in the sequence.
    """
    if len(tools) == 1 and not may_answer:
        return tools[0], 0
    start = len(writer.sequence)
    writer.literal("Next step: ")
    chosen = writer.choose([*(tool.name for tool in tools), *([ANSWER] if may_answer else [])])
    writer.flush()
    spent = len(writer.sequence) - start
    writer.sequence.rewind(start)
    return next((tool for tool in tools if tool.name == chosen), None), spent


def write_call(writer: ConstrainedWriter, tool: ToolSpec) -> Iterator[str]:
    """Writes a call of the tool; yields the fragments of its JSON arguments, which are valid for its
    schema.
    """
    writer.literal(_opening(tool.name))
    yield from writer.value(tool.arguments)
    writer.flush()


def smallest_call(tool: ToolSpec) -> str:
    """The shortest call of that tool: what is written whatever the model chooses."""
    return _opening(tool.name) + shortest(tool.arguments)


def _opening(name: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
