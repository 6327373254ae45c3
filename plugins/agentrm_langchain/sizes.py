"""How large is a model call of LangChain, before it is made and after: estimates, and the use that was
reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from itertools import chain
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import Generation, LLMResult
from langchain_core.outputs.chat_result import ChatResult

from agentrm.adapters import Usage, estimate_text, estimate_tokens, read_usage

__all__ = [
    "ends_message",
    "input_size",
    "model_name",
    "output_limit",
    "response_headers",
    "result_size",
    "result_usage",
]

_PER_MESSAGE = 4
_MEDIA_TOKENS = 1000
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document"}
)
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
_NAMES = ("model_name", "model", "model_id", "deployment_name", "azure_deployment")


def input_size(prompt: Any, settings: Mapping[str, Any]) -> int:
    """Tokens of what will be sent: messages (or prompts of a completion model) and the schemas of bound
    tools."""
    parts = [prompt] if isinstance(prompt, str) else prompt
    total = sum(map(_message, parts))
    for name in ("tools", "functions", "response_format"):
        if name in settings:
            total += estimate_tokens(settings[name])
    return max(1, total)


def _message(message: Any) -> int:
    if isinstance(message, str):
        return estimate_text(message)
    said: Mapping[str, Any] = getattr(message, "__dict__", {})
    calls = said.get("tool_calls")
    return _PER_MESSAGE + _content(said.get("content")) + (estimate_tokens(calls) if calls else 0)


def _content(content: Any) -> int:
    if isinstance(content, str):
        return estimate_text(content)
    if not isinstance(content, list):
        return 0
    total = 0
    for block in content:
        is_media = isinstance(block, Mapping) and block.get("type") in _MEDIA
        total += _MEDIA_TOKENS if is_media else estimate_tokens(block)
    return total


def output_limit(model: Any, settings: Mapping[str, Any]) -> int | None:
    """The most tokens that the call may produce, None if nothing bounds them."""
    cls: Any = type(model)
    for source, names in ((settings, _LIMITS), (vars(model), _of_class(cls)[0])):
        for name in names:
            value = source.get(name)
            if type(value) is int and value > 0:
                return value
    return None


def model_name(model: Any, settings: Mapping[str, Any]) -> str | None:
    """The name that pools' `models` patterns are matched with."""
    named = settings.get("model")
    if isinstance(named, str) and named:
        return named
    cls: Any = type(model)
    for name in _of_class(cls)[1]:
        value = getattr(model, name, None)
        if isinstance(value, str) and value:
            return value
    return None


@lru_cache(maxsize=1024)
def _of_class(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which of `_LIMITS` and of `_NAMES` its models may have: asking one for what it does not have is slow."""
    open_ended = cls.model_config.get("extra") == "allow"
    known = [x for x in (*_LIMITS, *_NAMES) if open_ended or x in cls.model_fields or hasattr(cls, x)]
    return tuple(x for x in known if x in _LIMITS), tuple(x for x in known if x in _NAMES)


def result_usage(result: Any) -> Usage | None:
    """From a result of `_generate`, a chunk of `_stream` or an event of `_stream_chat_model_events`."""
    if isinstance(result, (ChatResult, LLMResult)):
        reported = [usage for part in _parts(result) if (usage := result_usage(part)) is not None]
        if reported:
            return reduce(Usage.plus, reported)
        return read_usage(result.llm_output) if result.llm_output else None
    if type(result) is dict:
        return read_usage(result)
    said: Mapping[str, Any] = getattr(getattr(result, "message", result), "__dict__", {})
    told = said.get("usage_metadata")  # not by `getattr`: pydantic is slow to say what is missing
    return read_usage({"usage_metadata": told}) if told else None


def response_headers(result: Any) -> Mapping[str, Any] | None:
    """The provider's response headers, which LangChain keeps if the model was told so (`include_response_headers`)."""
    part = next(iter(_parts(result)), None) if isinstance(result, (ChatResult, LLMResult)) else result
    for holder in (
        getattr(part, "generation_info", None),
        getattr(getattr(part, "message", None), "response_metadata", None),
    ):
        if holder and (found := holder.get("headers")) and isinstance(found, Mapping):
            return found
    output = getattr(result, "llm_output", None)
    found = output.get("headers") if output else None
    return found if found and isinstance(found, Mapping) else None


def ends_message(chunk: Any) -> bool:
    """Whether an event of the streaming protocol is its message's last; its consumer stops there."""
    return isinstance(chunk, Mapping) and chunk.get("event") in ("message-finish", "error")


def result_size(result: Any) -> int:
    """Tokens of what came, estimated."""
    if isinstance(result, (ChatResult, LLMResult)):
        return sum(map(result_size, _parts(result)))
    message = getattr(result, "message", None)
    if isinstance(message, BaseMessage):
        calls = vars(message).get("tool_call_chunks") or vars(message).get("tool_calls")
        return _content(message.content) + (estimate_tokens(calls) if calls else 0)
    if isinstance(result, Generation):
        return estimate_text(result.text)
    if isinstance(result, Mapping):  # an event of the streaming protocol
        return estimate_tokens(result.get("delta")) if "delta" in str(result.get("event", "")) else 0
    return estimate_tokens(result)


def _parts(result: ChatResult | LLMResult) -> Iterable[Any]:
    found: Any = result.generations
    return chain.from_iterable(found) if found and isinstance(found[0], list) else found
