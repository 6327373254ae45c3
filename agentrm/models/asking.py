"""What may be asked of a model: a prompt and how to answer it, refused at the call where it can't be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrm.errors import ConfigError
from agentrm.models.sequence import Sampler
from agentrm.models.tokenizer import Tokenizer

Prompt = str | Sequence[Mapping[str, str]]
"""Text, taken as it is, or messages with `role` and `content`."""


def encode(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Raises ConfigError for what is neither text nor messages of text, and for halves of surrogate pairs in them."""
    try:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        messages: Any = prompt
        if not isinstance(messages, Sequence) or not all(map(_is_message, messages)):
            raise ConfigError("prompt", prompt, "a text, or messages whose `role` and `content` are texts")
        return tokenizer.encode_chat(messages)
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise ConfigError("prompt", half, "text that UTF-8 can write: no half of a surrogate pair") from error


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def sampler_for(max_new_tokens: int, temperature: float, seed: int | None, stop: Sequence[str]) -> Sampler:
    """Checks the options of an answer. Raises ConfigError."""
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ConfigError("max_new_tokens", max_new_tokens, "a whole number, at least 1")
    if not isinstance(temperature, int | float) or not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError("temperature", temperature, "0 or a positive number")
    if seed is not None and (type(seed) is not int or not -(2**63) <= seed < 2**64):
        raise ConfigError("seed", seed, "None or a whole number of at most 64 bits")
    if not isinstance(stop, list | tuple) or not all(isinstance(one, str) and one for one in stop):
        raise ConfigError("stop", stop, "a list of texts, none of them empty")
    return Sampler(temperature, seed)
