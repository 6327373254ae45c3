"""How tools, calls and results are told to a model that knows only turns of text, and how it makes a call.

The wording is the `<tool_call>` convention that open models are trained on (Hermes, Qwen, SmolLM2).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentrm.models.constrained import ConstrainedWriter
from agentrm.models.schema import Node, compile_schema, shortest
from agentrm.models.sequence import Sampler, TokenSequence
from agentrm.models.tokenizer import Tokenizer

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

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> ToolSpec:
        """From a function as the OpenAI API describes it, with or without what wraps it there. Raises
        UnsupportedSchema."""
        function = described.get("function", described)
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return cls(function["name"], function.get("description") or "", parameters)


class Said(NamedTuple):
    """One message of a framework's conversation. `calls`: names and arguments of the tools that it calls, the arguments
    as JSON or as what JSON says. `result`: it is a tool's result."""

    role: str
    text: str
    calls: Sequence[tuple[str, str | Mapping[str, Any]]] = ()
    result: bool = False


def turns(conversation: Iterable[Said]) -> list[dict[str, str]]:
    """Messages as turns of text. Calls stand in the assistant's turn, word for word as the model writes them, so that
    the KV of its own is found again; results in the user's, several of one step together."""
    told: list[dict[str, str]] = []
    in_results = False
    for said in conversation:
        text = result_text(said.text) if said.result else said.text
        calls = [call_text(name, _arguments_text(arguments)) for name, arguments in said.calls]
        text = "\n".join(part for part in (text, *calls) if part)
        if said.result and in_results:
            told[-1]["content"] += "\n" + text
        else:
            told.append({"role": "user" if said.result else said.role, "content": text})
        in_results = said.result
    return told


def choice_of(asked: object) -> str:
    """What the OpenAI API and frameworks say of the choice of a tool, as auto, any, none or a name."""
    if asked is None or asked is False:
        return "auto"
    if asked is True or asked == "required":
        return "any"
    if isinstance(asked, Mapping):
        named = asked.get("function", asked)
        return str(named.get("name", asked.get("type", asked)))
    return str(asked)


def call_id() -> str:
    """A new one for a call, which its result names."""
    return f"call_{uuid.uuid4().hex}"


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


def with_instructions(messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSpec]) -> list[Mapping[str, str]]:
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


def result_text(content: str) -> str:
    """A tool's result as it stands in the turn after the call; several stand in the order of their calls."""
    return f"<tool_response>\n{content}\n</tool_response>"


def content_free(messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSpec]) -> list[Mapping[str, str]]:
    """The same system message and tools with nothing asked: what `next_step` is measured against."""
    system = [message for message in messages[:1] if message["role"] == "system"]
    return with_instructions([*system, {"role": "user", "content": "..."}], tools)


def step_scores(
    sequence: TokenSequence, tokenizer: Tokenizer, tools: Sequence[ToolSpec], *, may_answer: bool
) -> list[float]:
    """How likely each tool is the next step, in logarithms and in order; the last one is the answer, if
    it may.
    """
    steps = [*(tool.name for tool in tools), *([ANSWER] if may_answer else [])]
    return sequence.log_probabilities([tokenizer.encode(f"Next step: {step}") for step in steps])


def next_step(
    tools: Sequence[ToolSpec], scores: Sequence[float], free_scores: Sequence[float], sampler: Sampler
) -> ToolSpec | None:
    """The tool to call, None for an answer: the step that this conversation makes more likely than no
    question does.

    A small model prefers some words whatever is asked; taking that preference off first turns 3 right
    decisions of 9 into 8 with SmolLM2-135M (contextual calibration, Zhao et al. 2021, "Calibrate Before
    Use").
    """
    import torch

    gains = torch.tensor([score - free for score, free in zip(scores, free_scores, strict=True)])
    chosen = sampler.pick(gains)
    return tools[chosen] if chosen < len(tools) else None


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


def _arguments_text(arguments: str | Mapping[str, Any]) -> str:
    if isinstance(arguments, str):
        return arguments
    text = json.dumps(arguments, ensure_ascii=False)
    return json.dumps(arguments) if re.search("[\ud800-\udfff]", text) else text


def _opening(name: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
