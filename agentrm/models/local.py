"""A language model in this process: load it by name or path, then stream text, choices and tool calls
from it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agentrm.errors import ConfigError
from agentrm.models import tools as calls
from agentrm.models.constrained import ConstrainedWriter
from agentrm.models.errors import PromptTooLong
from agentrm.models.generation import Piece, Usage, write_text
from agentrm.models.loading import LoadedModel, load_model, resolve_device, resolve_dtype
from agentrm.models.sequence import Sampler, TokenSequence, cache_argument
from agentrm.models.tokenizer import Tokenizer
from agentrm.models.tools import ToolSpec

if TYPE_CHECKING:
    Prompt = str | Sequence[Mapping[str, str]]


_KEPT_SCORES = 64


def _never() -> bool:
    return False


class LocalModel:
    """A causal language model that runs on torch in this process, on a CPU or a GPU.

    Any number of threads may use one model at once: the weights are only read, and each call has its own KV
    cache and its own random generator. `cancelled` (for example `event.is_set`) is asked before each token
    and between chunks of a long prompt. A call that is dropped (its iterator closed or collected) leaves
    nothing running.

    A prompt is a string, taken as it is, or messages with `role` and `content`, for which the model's own
    chat template is used. Everything is deterministic at temperature 0, and at any temperature for a given
    `seed`.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._argument = cache_argument(loaded.weights)
        self._content_free: dict[tuple[str, bool], list[float]] = {}

    @classmethod
    def load(
        cls, name_or_path: str, *, device: str = "auto", dtype: str | None = None, threads: int | None = None
    ) -> LocalModel:
        """Loads a model; nothing is downloaded.

        `name_or_path`: a name of the catalogue (`agentrm models list`), a .gguf file of a llama, or a
        directory with config.json, tokenizer.json and safetensors. `device`: auto, cpu, cuda, cuda:1.
        `dtype`: float32, bfloat16 or float16; by default float32 on a CPU, bfloat16 on a GPU. `threads` sets
        torch's threads, which the whole process shares. Raises ModelError and its subclasses, ConfigError.
        """
        if threads is not None and threads < 1:
            raise ConfigError("threads", threads, "at least 1")
        place = resolve_device(device)
        kind = resolve_dtype(dtype, place)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        return cls(load_model(name_or_path, place, kind))

    @classmethod
    def shared(
        cls, name_or_path: str, *, device: str = "auto", dtype: str | None = None, threads: int | None = None
    ) -> LocalModel:
        """As `load`, but a model that is loaded already, in use and asked for in the same way is returned
        again.
        """
        key = (name_or_path, device, dtype)
        with _sharing:
            model = _shared.get(key)
            if model is None:
                model = _shared[key] = cls.load(name_or_path, device=device, dtype=dtype, threads=threads)
            return model

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    @property
    def context(self) -> int:
        """How many tokens the model can see, prompt and answer together."""
        return self._loaded.context

    @property
    def device(self) -> str:
        return str(self._loaded.device)

    @property
    def dtype(self) -> str:
        return str(self._loaded.dtype).removeprefix("torch.")

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r}, device={self.device!r}, dtype={self.dtype!r}, context={self.context})"

    def count_tokens(self, prompt: Prompt) -> int:
        """Exactly how many input tokens this prompt costs."""
        return len(self._encode(prompt))

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[Piece]:
        """Streams an answer. The last piece carries the usage and why it ended: stop, length or cancelled.

        A stop string ends the answer and is no part of it. The end of the model's context ends it too
        (length). Raises PromptTooLong and ConfigError before the first piece.
        """
        sampler = _sampler(max_new_tokens, temperature, seed, stop)
        sequence, room = self._start(prompt, cancelled)
        return write_text(sequence, self.tokenizer, sampler, min(max_new_tokens, room), stop)

    def choose(
        self,
        prompt: Prompt,
        options: Sequence[str],
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> str:
        """The one of the options with which the model would rather begin its answer.

        Raises ConfigError for no or equal options, PromptTooLong, GenerationCancelled.
        """
        if not options or "" in options or len(set(options)) < len(options):
            raise ConfigError("options", list(options), "at least one text, none of them empty, no two equal")
        sampler = _sampler(1, temperature, seed, ())
        sequence, room = self._start(prompt, cancelled)
        return ConstrainedWriter(sequence, self.tokenizer, sampler, room).choose(options)

    def respond(
        self,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSpec] = (),
        *,
        tool_choice: str = "auto",
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[Piece]:
        """Streams an answer or one tool call, whose arguments are always valid for the tool's schema.

        `tool_choice`: auto (the model decides between answering and each tool), any, none, or a tool's name.
        The model only fills the free places of a call, so `max_new_tokens` cannot cut one in half: it bounds
        the free places, and the fixed parts are always written. A call that is cancelled raises
        GenerationCancelled; text ends early instead. Further errors as `generate`.
        """
        by_name = {tool.name: tool for tool in tools}
        if tool_choice not in ("auto", "any", "none", *by_name):
            raise ConfigError("tool_choice", tool_choice, ", ".join(("auto", "any", "none", *by_name)))
        if tool_choice == "any" and not tools:
            raise ConfigError("tool_choice", tool_choice, "auto or none where there are no tools")
        sampler = _sampler(max_new_tokens, temperature, seed, stop)
        sequence, room = self._start(calls.with_instructions(messages, tools), cancelled)
        limit = min(max_new_tokens, room)
        if not tools or tool_choice == "none":
            return write_text(sequence, self.tokenizer, sampler, limit, stop)
        offered = [by_name[tool_choice]] if tool_choice in by_name else list(tools)
        fixed = max(len(self.tokenizer.encode(calls.smallest_call(tool))) for tool in offered)
        if fixed > room:
            raise PromptTooLong(len(sequence) + fixed, self.context)
        writer = ConstrainedWriter(sequence, self.tokenizer, sampler, limit - fixed)
        if len(offered) == 1 and tool_choice != "auto":
            return _write_call(writer, offered[0])
        return self._decide_and_write(
            writer, messages, offered, may_answer=tool_choice == "auto", limit=limit, stop=stop
        )

    def _decide_and_write(
        self,
        writer: ConstrainedWriter,
        messages: Sequence[Mapping[str, str]],
        tools: list[ToolSpec],
        *,
        may_answer: bool,
        limit: int,
        stop: Sequence[str],
    ) -> Iterator[Piece]:
        sequence = writer.sequence
        scores = calls.step_scores(sequence, self.tokenizer, tools, may_answer=may_answer)
        free = self._content_free_scores(messages, tools, may_answer, sequence.cancelled)
        tool = calls.next_step(tools, scores, free, writer.sampler)
        if tool is None:
            yield from write_text(sequence, self.tokenizer, writer.sampler, limit, stop)
        else:
            yield from _write_call(writer, tool)

    def _content_free_scores(
        self,
        messages: Sequence[Mapping[str, str]],
        tools: list[ToolSpec],
        may_answer: bool,
        cancelled: Callable[[], bool],
    ) -> list[float]:
        """Computed once per system message and set of tools. Two threads may both compute it: it is the
        same.
        """
        prompt = calls.content_free(messages, tools)
        key = (self.tokenizer.render(prompt), may_answer)
        scores = self._content_free.get(key)
        if scores is None:
            sequence, _ = self._start(prompt, cancelled)
            scores = calls.step_scores(sequence, self.tokenizer, tools, may_answer=may_answer)
            if len(self._content_free) >= _KEPT_SCORES:
                self._content_free.clear()
            self._content_free[key] = scores
        return scores

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return self.tokenizer.encode_chat(prompt)

    def _start(self, prompt: Prompt, cancelled: Callable[[], bool]) -> tuple[TokenSequence, int]:
        tokens = self._encode(prompt)
        if not tokens:
            raise ConfigError("prompt", prompt, "at least one token")
        room = self.context - len(tokens)
        if room < 1:
            raise PromptTooLong(len(tokens), self.context)
        loaded = self._loaded
        return TokenSequence(loaded.weights, self._argument, loaded.device, tokens, cancelled), room


_sharing = threading.Lock()
_shared: weakref.WeakValueDictionary[tuple[str, str, str | None], LocalModel] = weakref.WeakValueDictionary()


def _write_call(writer: ConstrainedWriter, tool: ToolSpec) -> Iterator[Piece]:
    prompt = len(writer.sequence)
    yield Piece("", tool=tool.name)
    for text in calls.write_call(writer, tool):
        yield Piece(text, tool=tool.name)
    yield Piece("", usage=Usage(prompt, len(writer.sequence) - prompt, "tool_calls"))


def _sampler(max_new_tokens: int, temperature: float, seed: int | None, stop: Sequence[str]) -> Sampler:
    if max_new_tokens < 1:
        raise ConfigError("max_new_tokens", max_new_tokens, "at least 1")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError("temperature", temperature, "0 or a positive number")
    if isinstance(stop, str) or "" in stop:
        raise ConfigError("stop", stop, "a list of texts, none of them empty")
    return Sampler(temperature, seed)
