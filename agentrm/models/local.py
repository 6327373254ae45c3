"""A language model in this process: load it by name or path, then stream text, choices and tool calls from it, for many
programs at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from agentrm.errors import ConfigError
from agentrm.models import tools as calls
from agentrm.models.asking import Prompt, encode, sampler_for
from agentrm.models.constrained import ConstrainedWriter
from agentrm.models.engine.build import Memory, build_loop, fingerprint, lanes_for
from agentrm.models.engine.calls import Call, never
from agentrm.models.engine.loop import Loop, LoopStatistics
from agentrm.models.engine.seats import Turns, caller
from agentrm.models.engine.snapshot import Snapshot
from agentrm.models.engine.store import Chain
from agentrm.models.engine.swap import SwapKind
from agentrm.models.engine.thread import apart
from agentrm.models.engine.works import BeamWork, TextWork
from agentrm.models.errors import OutOfBlocks, PromptTooLong, SnapshotMismatch
from agentrm.models.generation import Piece, TextStream
from agentrm.models.generations import BeamSearch, Generation, revive
from agentrm.models.loading import LoadedModel, load_model, resolve_device, resolve_dtype
from agentrm.models.programs import Program
from agentrm.models.responding import Asked, Responding
from agentrm.models.sequence import TokenSequence
from agentrm.models.tokenizer import Tokenizer
from agentrm.models.tools import ToolSpec
from agentrm.scheduling import ResourceManager

SLICE_TOKENS = 32
PENALTY = 16
"""Beyond it a score says nothing but the length."""


class LocalEngine:
    """A causal language model that runs on torch in this process, on a CPU or on GPUs, for many programs at once.

    One thread per device computes one token after the other for all calls that have a lane, together in one forward.
    Who has a lane the kernel decides, by class and fair share; a call that a more urgent one waits for gives its lane
    up at a token boundary, and so does one that has written `slice_tokens` while others wait. What was computed is kept
    in blocks of KV memory that never grow beyond their limit: shared between prompts that begin alike, kept between the
    turns of a program, swapped out for calls that need the room, given up last.

    Any number of threads may use one engine. `cancelled` (for example `event.is_set`) is asked before each token. A
    call that is dropped (its iterator closed or collected) leaves nothing running.

    A prompt is a string, taken as it is, or messages with `role` and `content`, for which the model's own chat template
    is used. Everything is deterministic at temperature 0, and at any temperature for a given `seed`.
    """

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        *,
        memory: int | None = None,
        swap: SwapKind | None = None,
        swap_bytes: int | None = None,
        lanes: int | None = None,
        slice_tokens: int | None = SLICE_TOKENS,
        manager: ResourceManager | None = None,
        pool: str = "local",
    ) -> None:
        for key, value in (("memory", memory), ("lanes", lanes), ("slice_tokens", slice_tokens)):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(key, value, "a whole number, at least 1")
        if swap_bytes is not None and (type(swap_bytes) is not int or swap_bytes < 0):
            raise ConfigError("swap_bytes", swap_bytes, "a whole number, at least 0")
        if swap not in (None, "disk", "memory", "none"):
            raise ConfigError("swap", swap, "disk, memory or none")
        self._loaded = loaded[0]
        if manager is None:
            wanted = lanes or lanes_for(self._loaded.device) * len(loaded)
            manager = ResourceManager(name=f"engine of {self._loaded.name}", pools={pool: {"lanes": wanted}})
        elif pool not in manager.pools:
            raise ConfigError("pool", pool, "one of the manager's: " + ", ".join(manager.pools))
        elif lanes is not None:
            raise ConfigError("lanes", lanes, f"nothing beside a manager: pools.{pool}.lanes says it")
        self.manager, self.pool = manager, pool
        self.lanes: int = manager.config.pools[pool].lanes
        """Calls that are computed at once."""
        parts = Memory(memory, swap, swap_bytes)
        turns = Turns(manager, pool, slice_tokens)
        self._loops = apart(lambda: [build_loop(one, parts, self.lanes, turns) for one in loaded])
        self._model = fingerprint(self._loaded)
        self._responding = Responding(self.tokenizer, self._measure)

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        device: str | Sequence[str] = "auto",
        dtype: str | None = None,
        threads: int | None = None,
        **engine: Any,
    ) -> LocalEngine:
        """Loads a model; nothing is downloaded.

        `name_or_path`: a name of the catalogue (`agentrm models list`), a .gguf file of a llama, or a directory with
        config.json, tokenizer.json and safetensors. `device`: auto, cpu, cuda, cuda:1, or a list of them, each of which
        gets the whole model; a program stays on its device. `dtype`: float32, bfloat16 or float16; by default float32
        on a CPU, bfloat16 on a GPU. `threads` sets torch's threads, which the whole process shares.

        `memory`: bytes of KV per device (default: what the lanes can use, at most a quarter of the machine's memory or
        80 % of a GPU's free memory). `swap`: where KV goes when that is full: disk (default on a CPU), memory (of the
        host; default on a GPU) or none; at most `swap_bytes` of it (default: four times the memory). `lanes`: calls
        that are computed at once (default: 8 on a CPU, 64 on a GPU). `slice_tokens`: what a call writes before another
        one of its class may have its lane; None: it writes on. `manager`, `pool`: whose kernel decides (default: a
        manager of its own); the pool is for the engine alone.

        Raises ModelError and its subclasses, ConfigError.
        """
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ConfigError("threads", threads, "a whole number, at least 1")
        devices = [device] if isinstance(device, str) else list(device)
        if not devices:
            raise ConfigError("device", device, "at least one")
        places = [resolve_device(one) for one in devices]
        kinds = [resolve_dtype(dtype, place) for place in places]
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        wanted = zip(places, kinds, strict=True)
        return cls(apart(lambda: [load_model(name_or_path, *where) for where in wanted]), **engine)

    @classmethod
    def shared(
        cls, name_or_path: str, *, device: str = "auto", dtype: str | None = None, threads: int | None = None
    ) -> LocalEngine:
        """As `load`, but an open engine that is in use and was asked for in the same way is returned again."""
        key = (name_or_path, device, dtype)
        with _sharing:
            engine = _shared.get(key)
            if engine is None or engine.closed:  # by somebody, or in the parent of this process
                engine = _shared[key] = cls.load(name_or_path, device=device, dtype=dtype, threads=threads)
            return engine

    # --- what it is ---

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    @property
    def context(self) -> int:
        """How many tokens a call can have, prompt and answer together: what the model sees and the memory holds."""
        held = min(loop.store.pool.capacity for loop in self._loops) * self._loops[0].store.block
        return min(self._loaded.context, held)

    @property
    def device(self) -> str:
        return ", ".join(str(loop.store.arena.device) for loop in self._loops)

    @property
    def dtype(self) -> str:
        return str(self._loaded.dtype).removeprefix("torch.")

    def __repr__(self) -> str:
        return f"LocalEngine({self.name!r}, device={self.device!r}, dtype={self.dtype!r}, context={self.context})"

    def statistics(self) -> tuple[LoopStatistics, ...]:
        """Of each device, in order."""
        return tuple(loop.statistics() for loop in self._loops)

    def count_tokens(self, prompt: Prompt) -> int:
        """Exactly how many input tokens this prompt costs."""
        return len(encode(self.tokenizer, prompt))

    def program(self, name: str = "program") -> Program:
        """A program, to be given to its calls; the name is for messages only."""
        return Program(name, self._free_loop())

    @property
    def closed(self) -> bool:
        return all(loop.closed for loop in self._loops)

    def flush(self) -> int:
        """Empties the cache of what ended calls left in memory. Returns how many blocks that were."""
        return sum(loop.ask(loop.store.flush) for loop in self._loops)

    def close(self) -> None:
        """Ends all calls with EngineClosed; later ones are refused."""
        for loop in self._loops:
            loop.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- generating ---

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        program: Program | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> Generation:
        """Streams an answer. The last piece carries the usage and why it ended: stop, length or cancelled.

        A stop string ends the answer and is no part of it. The end of the model's context ends it too (length). With a
        `program` the answer is its next turn: only what its prompt adds to the conversation is computed. Raises
        PromptTooLong and ConfigError at once; ProgramBusy, EngineClosed and AdmissionError come with the first piece.
        """
        sampler = sampler_for(max_new_tokens, temperature, seed, stop)
        tokens, room = self._fitting(prompt)
        limit = min(max_new_tokens, room)
        loop, chain = self._place(program)
        call = Call(caller(), chain, limit, cancelled, program)

        def start(put: Callable[[Any], object]) -> None:
            if program is not None:
                program.begin_turn()
            stream = TextStream(self.tokenizer, limit, stop)
            loop.begin(call, tokens, lambda: TextWork(chain, stream, sampler, put), put)

        return Generation(loop, call, start, self._model)

    def beam_search(
        self,
        prompt: Prompt,
        *,
        width: int = 4,
        max_new_tokens: int = 256,
        length_penalty: float = 1.0,
        cancelled: Callable[[], bool] = never,
    ) -> BeamSearch:
        """Searches the likeliest answers, keeping the best `width` at each token. An answer's score is the sum of its
        tokens' log-probabilities over its length to the power of `length_penalty`. Raises PromptTooLong, ConfigError
        and OutOfBlocks at once."""
        if type(width) is not int or width < 1:
            raise ConfigError("width", width, "a whole number, at least 1")
        if not isinstance(length_penalty, int | float) or not abs(length_penalty) <= PENALTY:
            raise ConfigError("length_penalty", length_penalty, f"a number from -{PENALTY} to {PENALTY}")
        sampler_for(max_new_tokens, 0.0, None, ())
        tokens, room = self._fitting(prompt)
        limit = min(max_new_tokens, room)
        loop, chain = self._free_loop(), Chain()
        block = loop.store.block
        needed = len(tokens) // block + width * (-(-limit // block) + 1)
        if needed > loop.store.pool.capacity:
            raise OutOfBlocks(needed, loop.store.pool.capacity)
        call = Call(caller(), chain, limit, cancelled)

        def start(put: Callable[[Any], object]) -> None:
            loop.begin(
                call, tokens, lambda: BeamWork(chain, width, limit, length_penalty, self.tokenizer.end_ids, put), put
            )  # fmt: skip

        return BeamSearch(loop, call, start, self._model, self.tokenizer)

    def resume(self, snapshot: Snapshot, *, cancelled: Callable[[], bool] = never) -> Generation | BeamSearch:
        """Goes on with a frozen generation; what it had shown is not shown again. Raises SnapshotMismatch,
        PromptTooLong."""
        if snapshot.model != self._model:
            raise SnapshotMismatch(self.name)
        longest = max(map(len, snapshot.tokens))
        if longest >= self.context:
            raise PromptTooLong(longest, self.context)
        return revive(self._free_loop(), self.tokenizer, snapshot, cancelled)

    def choose(
        self,
        prompt: Prompt,
        options: Sequence[str],
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        program: Program | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> str:
        """The one of the options with which the model would rather begin its answer.

        Raises ConfigError for no or equal options, PromptTooLong, GenerationCancelled, ProgramBusy.
        """
        texts = isinstance(options, list | tuple) and all(isinstance(option, str) and option for option in options)
        if not options or not texts or len(set(options)) < len(options):
            raise ConfigError("options", options, "a list of at least one text, none of them empty, no two equal")
        sampler = sampler_for(1, temperature, seed, ())
        tokens, room = self._fitting(prompt)
        with self._sequence(tokens, room, program, cancelled) as sequence:
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
        program: Program | None = None,
        cancelled: Callable[[], bool] = never,
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
        prompt = calls.with_instructions(messages, tools)
        if not tools or tool_choice == "none":
            return self.generate(
                prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, stop=stop, program=program,
                cancelled=cancelled,
            )  # fmt: skip
        sampler = sampler_for(max_new_tokens, temperature, seed, stop)
        tokens, room = self._fitting(prompt)
        offered = list(tools) if tool_choice in ("auto", "any") else [by_name[tool_choice]]
        fixed = max(len(self.tokenizer.encode(calls.smallest_call(tool))) for tool in offered)
        if fixed > room:
            raise PromptTooLong(len(tokens) + fixed, self.context)
        asked = Asked(messages, offered, tool_choice, sampler, min(max_new_tokens, room), stop, cancelled)
        return self._responding.pieces(asked, self._sequence(tokens, room, program, cancelled), fixed)

    # --- inside ---

    def _measure(self, prompt: Prompt, cancelled: Callable[[], bool]) -> AbstractContextManager[TokenSequence]:
        tokens, room = self._fitting(prompt)
        return self._sequence(tokens, room, None, cancelled)

    def _fitting(self, prompt: Prompt) -> tuple[list[int], int]:
        """The prompt's tokens and how many may follow."""
        tokens = encode(self.tokenizer, prompt)
        if not tokens:
            raise ConfigError("prompt", prompt, "at least one token")
        room = self.context - len(tokens)
        if room < 1:
            raise PromptTooLong(len(tokens), self.context)
        return tokens, room

    def _free_loop(self) -> Loop:
        return min(self._loops, key=lambda loop: len(loop.calls))

    def _place(self, program: Program | None) -> tuple[Loop, Chain]:
        if program is None:
            return self._free_loop(), Chain()
        if program.place[0] not in self._loops:
            raise ConfigError("program", program.name, "a program that this engine has made")
        return program.place

    def _sequence(
        self, tokens: list[int], room: int, program: Program | None, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[TokenSequence]:
        loop, chain = self._place(program)
        call = Call(caller(), chain, room, cancelled, program)

        @contextmanager
        def opened() -> Iterator[TokenSequence]:
            if program is not None:
                program.begin_turn()
            loop.begin(call, tokens, None, lambda error: None)
            try:
                yield TokenSequence(loop, call, tokens)
            finally:
                loop.end(call, wait=program is not None)

        return opened()


_sharing = threading.Lock()
_shared: weakref.WeakValueDictionary[tuple[str, str, str | None], LocalEngine] = weakref.WeakValueDictionary()
