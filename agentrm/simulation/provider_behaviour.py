"""What does the stub provider do with one request?

A `Behaviour` is one way to answer, well or badly. A provider follows one behaviour, a list of them in order
of arrival, a `Mix` drawn by a seed, or a function of the request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["Behaviour", "BehaviourSource", "Mix", "Outcome", "StubRequest", "ToolCall", "chooser"]

Outcome = Literal[
    "answered",  # in full
    "rate",  # 429, by a limit or by a behaviour
    "quota",  # 429 with code insufficient_quota
    "auth",  # 401
    "error",  # 500
    "overloaded",  # 503
    "invalid",  # 400: malformed request, or messages that break the pairs of calls and results
    "stalled",  # chunks, then silence until the client went away
    "hung",  # silence from the start until the client went away
    "dropped",  # the connection was cut by the provider
    "malformed",  # 200 with something that is not a reply
    "stream_error",  # 200, chunks, then an error inside the stream
    "abandoned",  # the client went away before a good answer was complete
    "stopped",  # the provider was stopped first
]

Kind = Literal[
    "answer",
    "rate",
    "quota",
    "auth",
    "error",
    "overloaded",
    "stall",
    "hang",
    "drop",
    "malformed",
    "stream_error",
]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an answer; `arguments` are sent as JSON. The id is made of the request's index."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StubRequest:
    """A request as the provider saw it.

    `index` counts arrivals from 0, `nth_of_agent` those of its agent that were not refused.
    """

    index: int
    nth_of_agent: int
    arrived_s: float
    model: str
    agent: str | None
    stream: bool
    include_usage: bool
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[str, ...]
    max_tokens: int | None
    prompt_tokens: int
    body: Mapping[str, Any]

    @property
    def answers_tool(self) -> bool:
        """Whether the newest message is a tool's result."""
        return bool(self.messages) and self.messages[-1].get("role") == "tool"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to answer. All times are in seconds and are multiplied by the provider's `time_scale`.

    An answer comes `service_s` after the request is taken up, as `output_tokens` tokens,
    `tokens_per_chunk` in each chunk, `gap_s` between chunks; a reply that isn't streamed comes when the
    last chunk would have.
    `service_s` and `output_tokens` may be a range, (low, high), drawn by the seed. `text` replaces
    made-up words.
    `tool_calls` are made if the request offers these tools and does not end with a tool's result; with
    `tool_calls="any"` the first tool offered is called without arguments.
    `after` is the number of chunks before a stall, drop or stream_error; a drop after 0 comes before any
    answer.
    `retry_after_s` is the hint on a refusal; how it is said is the provider's `hints`.
    `usage` False leaves out token counts even where they are asked for.
    """

    kind: Kind = "answer"
    service_s: float | tuple[float, float] = 0.0
    output_tokens: int | tuple[int, int] = 16
    tokens_per_chunk: int = 1
    gap_s: float = 0.0
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] | Literal["any"] = ()
    after: int = 0
    retry_after_s: float | None = None
    usage: bool = True

    def __post_init__(self) -> None:
        tokens = self.output_tokens if isinstance(self.output_tokens, tuple) else (self.output_tokens,)
        times = self.service_s if isinstance(self.service_s, tuple) else (self.service_s,)
        if min(*tokens, self.tokens_per_chunk - 1, self.after) < 0 or min(*times, self.gap_s) < 0:
            raise ValueError(
                f"times, tokens and chunks can't be negative, tokens_per_chunk is at least 1: {self!r}"
            )

    def drawn(self, chance: random.Random) -> Behaviour:
        """The same with its ranges drawn."""
        service, tokens = self.service_s, self.output_tokens
        return replace(
            self,
            service_s=chance.uniform(*service) if isinstance(service, tuple) else service,
            output_tokens=chance.randint(*tokens) if isinstance(tokens, tuple) else tokens,
        )


@dataclass(frozen=True, slots=True)
class Mix:
    """Behaviours by weight: `Mix((9, Behaviour()), (1, Behaviour("hang")))` hangs one request in ten.

    A draw depends on the provider's seed and the request's place only. `by="arrival"`: its place among
    all requests. `by="agent"`: its place among those of its agent that no limit refused, so that an
    agent meets the same luck however the requests of several interleave.
    """

    choices: tuple[tuple[float, Behaviour], ...]
    by: Literal["arrival", "agent"]

    def __init__(
        self, *choices: tuple[float, Behaviour], by: Literal["arrival", "agent"] = "arrival"
    ) -> None:
        if (
            not choices
            or min(weight for weight, _ in choices) < 0
            or not any(weight for weight, _ in choices)
        ):
            raise ValueError(f"a mix needs weights that are not negative and not all zero: {choices!r}")
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "by", by)


BehaviourSource = Behaviour | Sequence[Behaviour] | Mix | Callable[[StubRequest], Behaviour]


def chooser(source: BehaviourSource, seed: int) -> Callable[[StubRequest], Behaviour]:
    """One function of the request for every kind of source. The last behaviour of a list goes on for ever."""

    def choose(request: StubRequest) -> Behaviour:
        place: tuple[object, ...] = (seed, request.index)
        if isinstance(source, Mix):
            if source.by == "agent":
                place = (seed, request.agent, request.nth_of_agent)
            chance = random.Random(repr(place))
            weights = [weight for weight, _ in source.choices]
            chosen = chance.choices([behaviour for _, behaviour in source.choices], weights)[0]
            return chosen.drawn(chance)
        chance = random.Random(repr(place))
        if isinstance(source, Behaviour):
            return source.drawn(chance)
        if isinstance(source, Sequence):
            return source[min(request.index, len(source) - 1)].drawn(chance)
        return source(request).drawn(chance)

    if isinstance(source, Sequence) and not source:
        raise ValueError("a list of behaviours needs at least one")
    return choose
