"""LLM cores: whatever generates, behind one interface, several in one pool with the reason for each choice.

A core is a local engine, an OpenAI-compatible endpoint, or a framework's own client (its plugin has the class). The
idea, and the word, are AIOS's (arXiv 2403.16971, section 3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from agentrm.errors import ConfigError
from agentrm.models.generation import FinishReason, Piece, Usage
from agentrm.models.local import LocalEngine
from agentrm.models.tools import ToolSpec
from agentrm.scheduling import ResourceManager

Preference = Literal["load", "cost", "quality"]
Messages = Sequence[Mapping[str, str]]
_KEPT_CHOICES = 1000


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Traits:
    """What a pool knows of a core. `capacity`: calls at once. `input_usd`, `output_usd`: US dollars for a million
    tokens. `quality`: 0 to 1, in whatever sense its owner means it. `context`: tokens of prompt and answer, None if it
    is not known."""

    capacity: int
    input_usd: float = 0.0
    output_usd: float = 0.0
    quality: float = 0.5
    context: int | None = None

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ConfigError("capacity", self.capacity, "at least 1")
        if not 0 <= self.quality <= 1:
            raise ConfigError("quality", self.quality, "from 0 to 1")
        if self.input_usd < 0 or self.output_usd < 0:
            raise ConfigError("usd", (self.input_usd, self.output_usd), "at least 0")

    def usd(self, input_tokens: int, output_tokens: int) -> float:
        """What a call costs."""
        return (self.input_usd * input_tokens + self.output_usd * output_tokens) / 1e6


class Core(Protocol):
    """Something that generates. `respond` streams pieces like `LocalEngine.respond`, the last one with the usage."""

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def load(self) -> tuple[int, int] | None:
        """Calls that run and calls that wait, where the core admits them itself; None: the pool does."""
        ...

    def respond(
        self,
        messages: Messages,
        tools: Sequence[ToolSpec] = (),
        *,
        tool_choice: str = "auto",
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[Piece]: ...


class EngineCore:
    """A local engine as a core; its own lanes are its capacity."""

    def __init__(self, engine: LocalEngine, *, name: str | None = None, quality: float = 0.5) -> None:
        self.engine = engine
        self.name = name or engine.name
        self.traits = Traits(engine.lanes, quality=quality, context=engine.context)

    def load(self) -> tuple[int, int]:
        state = self.engine.manager.statistics().pools[self.engine.pool]
        return state.in_use, state.waiting

    def respond(self, messages: Messages, tools: Sequence[ToolSpec] = (), **options: Any) -> Iterator[Piece]:
        return self.engine.respond(messages, tools, **options)


class OpenAICore:
    """An OpenAI-compatible endpoint (vLLM, SGLang, Ollama, llama.cpp's server, a cloud) through the user's own client,
    `openai.OpenAI(base_url=...)`, which does not retry by itself if the pool's manager shall decide."""

    def __init__(self, client: Any, model: str, traits: Traits, *, name: str | None = None) -> None:
        self._client, self._model = client, model
        self.name, self.traits = name or model, traits

    def load(self) -> None:
        return None

    def respond(
        self,
        messages: Messages,
        tools: Sequence[ToolSpec] = (),
        *,
        tool_choice: str = "auto",
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = _never,
    ) -> Generator[Piece, None, None]:
        asked: dict[str, Any] = {"temperature": temperature, "max_tokens": max_new_tokens}
        if seed is not None:
            asked["seed"] = seed
        if stop:
            asked["stop"] = list(stop)
        if tools:
            asked |= {"tools": [_function(tool) for tool in tools], "tool_choice": _choice(tool_choice)}
            asked["parallel_tool_calls"] = False
        stream = self._client.chat.completions.create(
            model=self._model, messages=[dict(message) for message in messages], stream=True,
            stream_options={"include_usage": True}, **asked,
        )  # fmt: skip
        reason: FinishReason = "stop"
        usage, tool, written = None, None, 0
        try:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    written += 1
                    if choice.finish_reason in ("length", "tool_calls"):
                        reason = choice.finish_reason
                    if choice.delta.content:
                        yield Piece(choice.delta.content)
                    for call in choice.delta.tool_calls or ():
                        tool = call.function.name or tool
                        yield Piece(call.function.arguments or "", tool=tool)
                if cancelled():
                    reason = "cancelled"
                    break
        finally:
            stream.close()
        if usage is not None:
            details = getattr(usage, "prompt_tokens_details", None)
            known = getattr(details, "cached_tokens", None) or 0
            yield Piece("", usage=Usage(usage.prompt_tokens, usage.completion_tokens, reason, known))
        else:  # the endpoint does not say: an estimate, never nothing
            text = sum(len(message["content"]) for message in messages)
            yield Piece("", usage=Usage(text // 4 + 1, max(1, written), reason))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which core a call went to, and why."""

    core: str
    why: str


class CorePool:
    """Several cores as one. Each call goes to the core that suits it best now; `choices` has the latest, with reasons.

    A core that does not admit by itself gets a pool of its name in `manager`, with its capacity as lanes (default: a
    manager of the pool's own). Raises ConfigError for no or equally named cores, and for a manager that lacks a pool.
    """

    def __init__(self, cores: Sequence[Core], *, manager: ResourceManager | None = None) -> None:
        names = [core.name for core in cores]
        if not cores or len(set(names)) < len(names):
            raise ConfigError("cores", names, "at least one, no two of the same name")
        own = {core.name: {"lanes": core.traits.capacity} for core in cores if core.load() is None}
        if manager is None:
            manager = ResourceManager(name="cores", pools=own) if own else ResourceManager(name="cores")
        for name in own:
            if name not in manager.pools:
                raise ConfigError("cores", name, "only names of the manager's pools: " + ", ".join(manager.pools))
        self.manager = manager
        self._cores = {core.name: core for core in cores}
        self.choices: deque[Choice] = deque(maxlen=_KEPT_CHOICES)

    def load(self, name: str) -> float:
        """Calls that run or wait at a core, as a share of its capacity."""
        core = self._cores[name]
        known = core.load()
        if known is None:
            state = self.manager.statistics().pools[name]
            known = state.in_use, state.waiting
        return sum(known) / core.traits.capacity

    def choose(
        self, *, prefer: Preference = "load", min_quality: float = 0.0, input_tokens: int = 0, output_tokens: int = 256
    ) -> Choice:
        """The core that a call of that size would go to: the least loaded, the cheapest or the best one of those that
        are good enough and have the context; in doubt the less loaded one. Cheapest and best pass a core by that is
        full for one that is not. Raises ConfigError if none is good and large enough."""
        if prefer not in get_args(Preference):
            raise ConfigError("prefer", prefer, ", ".join(get_args(Preference)))
        size = input_tokens + output_tokens
        fit = [
            core for core in self._cores.values()
            if core.traits.quality >= min_quality and (core.traits.context is None or core.traits.context >= size)
        ]  # fmt: skip
        if not fit:
            raise ConfigError("min_quality", min_quality, f"a quality that a core with {size} tokens of context has")
        loads = {core.name: self.load(core.name) for core in fit}

        def usd(core: Core) -> float:
            return core.traits.usd(input_tokens, output_tokens)

        keys: dict[Preference, Callable[[Core], float]] = {
            "load": lambda core: 0.0, "cost": usd, "quality": lambda core: -core.traits.quality
        }  # fmt: skip
        key = keys[prefer]
        wanted = min(fit, key=lambda core: (key(core), loads[core.name]))
        core = wanted
        if prefer != "load":
            core = min(fit, key=lambda core: (loads[core.name] >= 1, key(core), loads[core.name]))
        why = {
            "load": f"least loaded: {loads[core.name]:.0%} of {core.traits.capacity} calls",
            "cost": f"cheapest: {usd(core):.6f} USD",
            "quality": f"best: quality {core.traits.quality:g}",
        }[prefer]
        if core is not wanted:
            why += f" of those with room; {wanted.name} is full"
        return Choice(core.name, f"{why}, of {len(fit)}")

    def respond(
        self,
        messages: Messages,
        tools: Sequence[ToolSpec] = (),
        *,
        prefer: Preference = "load",
        min_quality: float = 0.0,
        max_new_tokens: int = 256,
        **options: Any,
    ) -> Iterator[Piece]:
        """Streams from the core that `choose` names; the arguments are those of `Core.respond`."""
        text = sum(len(message["content"]) for message in messages)
        choice = self.choose(
            prefer=prefer, min_quality=min_quality, input_tokens=text // 4 + 1, output_tokens=max_new_tokens
        )  # fmt: skip
        self.choices.append(choice)
        core = self._cores[choice.core]
        if core.load() is not None:
            return core.respond(messages, tools, max_new_tokens=max_new_tokens, **options)

        def leased() -> Generator[Piece, None, None]:
            lease = self.manager.lease(
                pool=core.name, input_tokens=text // 4 + 1, max_output_tokens=max_new_tokens, streams=True
            )  # fmt: skip
            lease.acquire()  # not `with`: what is set across a yield shows elsewhere
            try:
                for piece in core.respond(messages, tools, max_new_tokens=max_new_tokens, **options):
                    lease.heartbeat()
                    if piece.usage is not None:
                        lease.settle(piece.usage.input_tokens, piece.usage.output_tokens)
                    yield piece
            except Exception as error:
                lease.fail(error)
                raise
            finally:
                lease.release()

        return leased()


def _function(tool: ToolSpec) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": described}


def _choice(asked: str) -> Any:
    """In the endpoint's words."""
    if asked in ("auto", "none"):
        return asked
    return "required" if asked == "any" else {"type": "function", "function": {"name": asked}}
