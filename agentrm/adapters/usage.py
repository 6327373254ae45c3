"""What did a call use, as its result or its stream reports it, and what to charge when it reports nothing?

Read by duck typing, so that no client and no framework is imported. A missing or zero report is no report:
the call is charged an estimate, never zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["Meter", "Usage", "estimate_text", "estimate_tokens", "read_usage"]

_INPUT = ("input_tokens", "prompt_tokens", "prompt_token_count", "prompt_eval_count", "inputTokens")
_OUTPUT = ("output_tokens", "completion_tokens", "candidates_token_count", "eval_count", "outputTokens")
_CACHED = ("cached_tokens", "cache_read", "cache_read_input_tokens", "cached_content_token_count")
_BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic counts them beside the input
_DETAILS = ("input_token_details", "input_tokens_details", "prompt_tokens_details")
_HOLDERS = ("usage_metadata", "usage", "models_usage", "token_usage")
_TEXTS = ("content", "text", "delta", "message", "choices", "generations", "tool_calls", "tool_call_chunks")
_DEEPEST = 8
_MOST_TOKENS = 2_000_000_000
"""No call used more: a report that says so is wrong."""


class Usage(NamedTuple):  # and no frozen dataclass: every call makes one
    """Tokens of one call. `input_tokens` includes `cached_tokens`, those that the provider had in its
    prefix cache. `estimated` says that the provider did not report them. `free`: nobody was asked, the whole
    answer came out of a cache of the framework; the call is not charged."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    free: bool = False

    def checked(self) -> Usage:
        """Without what is no count of tokens: a provider's wrong report of the use must not cost the answer."""
        inputs, outputs, cached, estimated, free = self
        if (
            type(inputs) is type(outputs) is type(cached) is int
            and 0 <= inputs <= _MOST_TOKENS
            and 0 <= outputs <= _MOST_TOKENS
            and 0 <= cached <= _MOST_TOKENS
        ):
            return self
        return Usage(_count(inputs), _count(outputs), _count(cached), estimated, free)

    def plus(self, other: Usage) -> Usage:
        return self._merged(other, int.__add__)

    def at_least(self, other: Usage) -> Usage:
        return self._merged(other, max)

    def _merged(self, other: Usage, merge: Callable[[int, int], int]) -> Usage:
        return Usage(
            merge(self.input_tokens, other.input_tokens),
            merge(self.output_tokens, other.output_tokens),
            merge(self.cached_tokens, other.cached_tokens),
            self.estimated or other.estimated,
            self.free or other.free,
        )


def read_usage(result: Any) -> Usage | None:
    """The use that a result or chunk of a common client reports (OpenAI's two APIs, Anthropic, Google,
    Ollama, LangChain, AutoGen, plain dicts), None if it reports none."""
    get = _reader(result)
    for name in _HOLDERS:
        if (held := get(name)) is not None and (usage := _from_counts(held)) is not None:
            return usage
    return _from_counts(result) if isinstance(result, Mapping) else None


def _from_counts(counts: Any) -> Usage | None:
    get = _reader(counts)
    inputs, outputs = _first(get, _INPUT), _first(get, _OUTPUT)
    if not inputs and not outputs:
        return None
    cached = _first(get, _CACHED)
    for name in _DETAILS:
        if not cached and (details := get(name)) is not None:
            cached = _first(_reader(details), _CACHED)
    if get("input_tokens") is not None and get("input_token_details") is None:
        for name in _BESIDE:
            inputs += _count(get(name))
    return Usage(inputs, outputs, cached)


def _first(get: Callable[[str], Any], names: Iterable[str]) -> int:
    for name in names:
        value = get(name)
        if value is not None and (number := _count(value)):
            return number
    return 0


def _count(value: Any) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value <= _MOST_TOKENS else 0


def _reader(holder: Any) -> Callable[[str], Any]:
    """What looks a name up in it, None for what is not there."""
    if isinstance(holder, dict) or isinstance(holder, Mapping):  # the first is much quicker to tell
        return holder.get
    return lambda name: getattr(holder, name, None)


def estimate_text(text: str) -> int:
    """Tokens of a text, roughly: four ASCII characters to a token, three bytes of UTF-8 of any other script
    (one Chinese character, one and a half Cyrillic letters). At least 1 unless the text is empty."""
    if not text:
        return 0
    if text.isascii():
        return (len(text) + 3) // 4
    ascii_length = len(text.encode("ascii", "ignore"))
    others = len(text.encode("utf-8", "surrogatepass")) - ascii_length
    return max(1, round(ascii_length / 4 + others / 3))


def estimate_tokens(value: Any) -> int:
    """Tokens in the texts of a message, result, chunk or any nesting of them; 0 where there is none."""
    return _estimate(value, 0)


def _estimate(value: Any, depth: int) -> int:
    if value is None or depth > _DEEPEST:
        return 0
    if isinstance(value, str):
        return estimate_text(value)
    if isinstance(value, (int, float, bool)):
        return 1
    if isinstance(value, Mapping):
        return sum(_estimate(item, depth + 1) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_estimate(item, depth + 1) for item in value)
    return sum(_estimate(getattr(value, name, None), depth + 1) for name in _TEXTS)


class Meter:
    """Adds up what the chunks of one stream used. `total` may be asked at any time: for a stream that was
    cut, too."""

    __slots__ = ("_adds", "_counted", "_read", "_reported", "_size", "kept")

    def __init__(
        self,
        usage: Callable[[Any], Usage | None] = read_usage,
        size: Callable[[Any], int] = estimate_tokens,
        *,
        adds: bool = False,
    ) -> None:
        self._read, self._size, self._adds = usage, size, adds
        self._reported: Usage | None = None
        self._counted = 0
        self.kept: list[Any] = []
        """What came so far, where somebody needs it."""

    def add(self, chunk: Any) -> bool:
        """Whether the reply grew by it."""
        size = self._size(chunk)
        self._counted += size
        if (usage := self._read(chunk)) is not None:
            usage = usage.checked()
            if self._reported is None:
                self._reported = usage
            else:
                self._reported = self._reported.plus(usage) if self._adds else self._reported.at_least(usage)
        return size > 0

    @property
    def output_tokens(self) -> int:
        """Length of the reply so far, as reported or counted, whichever is more."""
        return max(self._counted, 0 if self._reported is None else self._reported.output_tokens)

    @property
    def is_estimate(self) -> bool:
        """Whether that is no more than a guess by the length of the text."""
        exact = self._reported is not None and self._reported.output_tokens >= self._counted
        return self._size is estimate_tokens and not exact

    def total(self, input_estimate: int | None, *, complete: bool) -> Usage:
        """The use so far. What was not reported is estimated: the input as `input_estimate`, the output by
        what came; of a stream that was cut the output is at least what came. Never zero, unless it was free."""
        reported = self._reported or Usage()
        if reported.free:
            return reported
        inputs = reported.input_tokens or max(1, input_estimate or 0)
        if complete and reported.output_tokens:
            return Usage(inputs, reported.output_tokens, reported.cached_tokens, not reported.input_tokens)
        return Usage(inputs, max(1, reported.output_tokens, self._counted), reported.cached_tokens, True)
