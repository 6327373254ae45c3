"""How do requests and replies of the OpenAI chat protocol look on the wire?

Tokens are counted by a rule that anyone can repeat: a word of an answer is one token; a prompt costs 4 per
message and 1 per 4 characters, begun ones included.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrm.simulation.provider_behaviour import Behaviour, StubRequest, ToolCall

__all__ = ["Reply", "error_body", "pair_fault", "parse", "prompt_tokens", "words"]

_WORDS = (
    "the lane is free and the next agent runs while others wait in fair order for their turn to ask a model "
    "about tokens limits queues streams and tools that answer late or never at all"
).split()


def words(count: int, seed: str) -> list[str]:
    """`count` words; equal seeds give equal words."""
    chance = random.Random(seed)
    return [chance.choice(_WORDS) for _ in range(count)]


def prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """The size of a prompt by the rule above."""
    return sum(4 + -(-len(_text(message.get("content"))) // 4) for message in messages)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, Mapping))
    return ""


def parse(raw: bytes) -> dict[str, Any] | str:
    """The body of a chat request, or what is wrong with it."""
    try:
        body = json.loads(raw)
    except ValueError:
        return "We could not parse the JSON body of your request."
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return "you must provide a model parameter"
    messages = body.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        return "'messages' must be a list of at least one message"
    for owner, key in ((body, "tools"), *((message, "tool_calls") for message in messages)):
        items = owner.get(key) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return f"'{key}' must be a list of objects"
    return body


def pair_fault(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What breaks the rule of pairs, or None.

    The rule: each tool result has exactly one earlier call with its id, and each call has exactly one result
    before the next user or assistant message and before the end.
    """
    waiting: set[object] = set()
    answered: set[object] = set()
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call = message.get("tool_call_id")
            if call in answered:
                return f"messages.[{place}]: the tool call {call!r} has a result already"
            if call not in waiting:
                return f"messages.[{place}]: 'tool' must follow a message with a tool call of the id {call!r}"
            waiting.discard(call)
            answered.add(call)
        elif role in ("user", "assistant"):
            if waiting:
                return f"messages.[{place}]: these tool calls have no result: {_ids(waiting)}"
            for called in message.get("tool_calls") or ():
                if called.get("id") in answered or called.get("id") in waiting:
                    return f"messages.[{place}]: the tool call id {called.get('id')!r} is used twice"
                waiting.add(called.get("id"))
    return f"these tool calls have no result: {_ids(waiting)}" if waiting else None


def _ids(calls: set[object]) -> str:
    return ", ".join(sorted(map(str, calls)))


def error_body(message: str, kind: str, code: str | None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Reply:
    """The answer to one request, in both forms: `frames()` for a stream, `whole()` otherwise."""

    __slots__ = ("_base", "_behaviour", "_pieces", "_request", "calls", "finish", "output_tokens")

    def __init__(self, request: StubRequest, behaviour: Behaviour, seed: int) -> None:
        self._request, self._behaviour = request, behaviour
        self._base = {
            "id": f"chatcmpl-{request.index}",
            "created": request.index,
            "model": request.model,
        }
        self.calls = _calls(request, behaviour)
        count = behaviour.output_tokens
        assert isinstance(count, int), "drawn before"
        said = (
            behaviour.text.split(" ")
            if behaviour.text is not None
            else words(count, f"{seed} {request.index}")
        )
        if self.calls:
            said = []
        whole = len(said)
        if request.max_tokens is not None:
            said = said[: request.max_tokens]
        self.finish = "tool_calls" if self.calls else "length" if len(said) < whole else "stop"
        self.output_tokens = len(said) + sum(4 + len(arguments) // 4 for _, _, arguments in self.calls)
        step = behaviour.tokens_per_chunk
        spaced = [word if place == 0 else f" {word}" for place, word in enumerate(said)]
        self._pieces = ["".join(spaced[place : place + step]) for place in range(0, len(spaced), step)]

    @property
    def chunks(self) -> int:
        """Chunks that carry content."""
        return len(self.calls) or len(self._pieces)

    def frames(self) -> Iterator[bytes]:
        """The frames with content, one per chunk."""
        head = {**self._base, "object": "chat.completion.chunk"}
        for place, (call_id, name, arguments) in enumerate(self.calls):
            call = {
                "index": place,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            delta = {"role": "assistant", "content": None, "tool_calls": [call]}
            yield _frame({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if self._pieces:
            # All but the piece is the same in each frame: no need to dump thousands of them.
            mark = "\x00"
            choice = {"index": 0, "delta": {"role": "assistant", "content": mark}, "finish_reason": None}
            before, after = _frame({**head, "choices": [choice]}).split(json.dumps(mark).encode())
            for piece in self._pieces:
                yield before + json.dumps(piece).encode() + after

    def ending(self) -> bytes:
        """What closes a stream: the reason, the usage if it is asked for and given, the mark of the end."""
        head = {**self._base, "object": "chat.completion.chunk"}
        last = _frame({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        if self._request.include_usage and self._behaviour.usage:
            last += _frame({**head, "choices": [], "usage": self._usage()})
        return last + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """The reply of a request that does not stream."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls else "".join(self._pieces),
        }
        if self.calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in self.calls
            ]
        reply = {
            **self._base,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish}],
        }
        return {**reply, "usage": self._usage()} if self._behaviour.usage else reply

    def _usage(self) -> dict[str, int]:
        prompt, output = self._request.prompt_tokens, self.output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _calls(request: StubRequest, behaviour: Behaviour) -> list[tuple[str, str, str]]:
    if not request.tools or request.answers_tool:
        return []
    wanted = (ToolCall(request.tools[0]),) if behaviour.tool_calls == "any" else behaviour.tool_calls
    offered = [call for call in wanted if call.name in request.tools]
    return [
        (f"call_{request.index}_{place}", call.name, json.dumps(dict(call.arguments)))
        for place, call in enumerate(offered)
    ]


def _frame(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
