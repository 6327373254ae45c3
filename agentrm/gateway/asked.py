"""What does a request ask for? Its program, its size, and the body that the engine is to get."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from agentrm.gateway.keys import Caller
from agentrm.gateway.refusals import Refused
from agentrm.identity import Priority
from agentrm.programs import Prefix
from agentrm.programs.backends import MOST_TOKENS

__all__ = ["AGENT_HEADER", "PRIORITY_HEADER", "PROGRAM_HEADER", "Api", "Asked", "plain_json", "program_of", "read"]

PROGRAM_HEADER, AGENT_HEADER, PRIORITY_HEADER = "X-AgentRM-Program", "X-AgentRM-Agent", "X-AgentRM-Priority"
SESSION_HEADER = "X-Session-ID"

Api = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]

BYTES_PER_TOKEN = 4
"""A first guess: what a program's turns really used corrects it from the second turn on."""
TOKENS_PER_PART = 800
"""The same for a part that is no text (a picture, a sound)."""
_NO_TEXT = frozenset({"image_url", "input_image", "input_audio", "input_file", "file"})
_LONGEST_NAME = 512
TOO_DEEP = "it nests too deeply: bring lists and objects down to a few hundred levels"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `program` is unique among all tenants; `named` says whether the client named it, so that it goes on
    after this request. `show_usage`: whether the client wants the usage frame of its stream."""

    api: Api
    caller: Caller
    program: str
    named: bool
    agent: str
    priority: Priority
    model: str | None
    stream: bool
    show_usage: bool
    prompt_tokens: int
    max_output_tokens: int | None
    prefix: Prefix | None
    body: Mapping[str, Any]

    def sent(self, fields: Mapping[str, Any]) -> bytes:
        """The body for the engine, with the fields that its backend adds. A stream's usage is always asked for. Raises
        Refused (400) for what nests too deeply to be written again."""
        body = {**self.body, **fields}
        if self.stream and self.api != "/v1/responses":
            options = body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, Mapping) else {}), "include_usage": True}
        try:
            return json.dumps(body, separators=(",", ":")).encode()
        except RecursionError:
            raise Refused(400, TOO_DEEP, "invalid_json") from None


def read(api: Api, raw: bytes, headers: Mapping[str, str], caller: Caller, number: int) -> Asked:
    """Reads a request; `number` tells those apart that name no program. Raises Refused (400) for what can't be."""
    try:
        return _read(api, plain_json(raw), headers, caller, number)
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}", "invalid_json") from None
    except RecursionError:
        raise Refused(400, TOO_DEEP, "invalid_json") from None


def plain_json(raw: bytes) -> Any:
    """Reads JSON as it is defined: `NaN`, and numbers beyond those of a double, which nobody else could read once they
    were written again, are refused. Raises ValueError, also for what nests too deeply."""
    try:
        return json.loads(raw, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON's")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _read(api: Api, body: Any, headers: Mapping[str, str], caller: Caller, number: int) -> Asked:
    if not isinstance(body, dict):
        raise Refused(400, "the body has to be a JSON object", "invalid_json")
    extra = body.pop("extra_body", None)  # a client that does not flatten it, as OpenAI's does
    if extra is not None and not isinstance(extra, dict):
        raise Refused(400, "extra_body has to be a JSON object", "invalid_request")
    body = {**(extra or {}), **body}
    in_body = body.pop("program_id", None)
    said = headers.get(PROGRAM_HEADER) or in_body or headers.get(SESSION_HEADER) or body.get("user")
    program = _name(said, "program_id")
    agent = _name(headers.get(AGENT_HEADER), AGENT_HEADER)
    model = _name(body.get("model"), "model")
    options = body.get("stream_options")
    stream = body.get("stream") is True
    return Asked(
        api=api,
        caller=caller,
        program=program_of(caller.tenant, program) if program is not None else f"#{number}",
        named=program is not None,
        agent=agent or program or "default",
        priority=caller.priority(headers.get(PRIORITY_HEADER)),
        model=model,
        stream=stream,
        show_usage=api == "/v1/responses" or (isinstance(options, dict) and options.get("include_usage") is True),
        prompt_tokens=_prompt_tokens(body),
        max_output_tokens=_most_output(body),
        prefix=_prefix(body),
        body=body,
    )


def program_of(tenant: str, name: str) -> str:
    """The id of a tenant's program among those of all tenants."""
    return f"{tenant.replace('%', '%25').replace('/', '%2F')}/{name}"


def _name(value: object, what: str) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise Refused(400, f"{what} has to be text of at most {_LONGEST_NAME} characters", "invalid_request")
    return value


def _most_output(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, MOST_TOKENS)
    return None


def _prompt_tokens(body: Mapping[str, Any]) -> int:
    return sum(_tokens(body.get(name)) for name in ("messages", "prompt", "input", "instructions", "tools"))


def _tokens(value: object) -> int:
    """A guess from the length of all texts; parts that are no text count as a whole, not by their data's length."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return TOKENS_PER_PART
        return len(value.encode("utf-8", "replace")) // BYTES_PER_TOKEN
    if isinstance(value, list):
        if value and isinstance(value[0], int):  # a prompt in tokens
            return len(value)
        return sum(map(_tokens, value))
    if isinstance(value, dict):
        if value.get("type") in _NO_TEXT:
            return TOKENS_PER_PART
        return 1 + sum(map(_tokens, value.values()))
    return 1


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _prefix(body: Mapping[str, Any]) -> Prefix | None:
    """The system text with the tools, which agents of one kind share."""
    messages = body.get("messages")
    head = list(takewhile(_is_system, messages)) if isinstance(messages, list) else []
    shared = [head, body.get("tools"), body.get("instructions")]
    if not any(shared):
        return None
    text = json.dumps(shared, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(f"{body.get('model')}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return Prefix(digest, sum(map(_tokens, shared)))
