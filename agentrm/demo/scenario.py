"""What happens in the demo: who asks what when and what the provider does. Drawn by one seed, the same in both runs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrm.simulation.provider_behaviour import Behaviour, StubRequest, ToolCall
from agentrm.simulation.provider_limits import Limit

__all__ = ["ASSISTANT", "FRAMEWORKS", "HOSTED", "READER", "RESEARCHER", "Luck", "Scenario", "full", "quick", "role_of"]

ASSISTANT, RESEARCHER, READER = "assistant", "researcher", "reader"
INDEXER, SORTER = "indexer", "sorter"
ASK_READER, FILES = "ask_reader", "(look it up in the files)"
FRAMEWORKS = ("langchain", "autogen", "crewai")
HOSTED = "stub-large"
"""The name of the model behind the loopback provider."""


def role_of(agent: str) -> str:
    """`person` for what the person waits for, else `background`."""
    return "person" if agent in (ASSISTANT, RESEARCHER, READER) else "background"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Sizes of the work and faults of the provider. Times in seconds; shares are of the provider's calls."""

    seed: int
    questions: int
    """A person asks so many, one every `every_s` whether or not the last is answered."""
    every_s: float
    indexers: int
    notes_each: int
    """Each indexer writes so many notes, two calls of the provider each, one after the other."""
    sorters: int
    letters_each: int
    """Each sorter files so many letters, one call of the local model each."""
    local_model: str
    answer_tokens: int
    """Most tokens of an answer of the local model."""
    cut_s: float
    """When a run is ended: what is not answered by then counts as failed."""

    frameworks: tuple[str, ...] = ("langchain",)
    """Whose agents work on the provider; several take turns."""
    provider_lanes: int = 4
    """What the provider works on at once; the rest waits inside it in order of arrival."""
    requests: int = 30
    per_s: float = 5.0
    hang: float = 0.03
    stall: float = 0.03
    refuse_with_hint: float = 0.01
    refuse_without_hint: float = 0.01
    hint_s: float = 0.5
    service_s: tuple[float, float] = (0.2, 0.5)
    output_tokens: tuple[int, int] = (6, 14)
    gap_s: float = 0.03
    stall_after: int = 3

    client_timeout_s: float = 15.0
    """The time-out that the user gave the client, in both runs."""
    retries: int = 5
    """What the user gave LangChain's retry middleware, which waits 1 s, 2 s, 4 s and so on, or OpenAI's client in
    AutoGen and CrewAI, in both runs."""
    idle_s: float = 1.25
    sweep_s: float = 0.1
    local_lanes: int = 1
    margin_s: float = 0.1
    """By how much the user takes the provider's window to be longer: not all requests travel equally long."""

    def question(self, number: int) -> str:
        """Every fifth needs the files, which the reader has."""
        asked = random.Random(f"{self.seed} question {number}").choice(QUESTIONS)
        return f"Question {number}: {asked}" + (f" {FILES}" if number % 5 == 0 else "")

    def note(self, indexer: str, number: int) -> str:
        subject = random.Random(f"{self.seed} {indexer} {number}").choice(SUBJECTS)
        return f"Note {number} of {indexer}: what is new about {subject}?"

    def letter(self, sorter: str, number: int) -> str:
        return random.Random(f"{self.seed} {sorter} {number}").choice(LETTERS)

    @property
    def names_of_indexers(self) -> tuple[str, ...]:
        return tuple(f"{INDEXER}-{n + 1}" for n in range(self.indexers))

    @property
    def names_of_sorters(self) -> tuple[str, ...]:
        return tuple(f"{SORTER}-{n + 1}" for n in range(self.sorters))

    @property
    def others(self) -> int:
        """Jobs of the background."""
        return self.indexers * self.notes_each + self.sorters * self.letters_each

    @property
    def limit(self) -> Limit:
        return Limit(requests=self.requests, per_s=self.per_s)


def full(seed: int) -> Scenario:
    return Scenario(
        seed=seed, questions=20, every_s=1.6, indexers=14, notes_each=4, sorters=4, letters_each=3,
        local_model="smollm2-135m", answer_tokens=5, cut_s=50.0,
    )  # fmt: skip


def quick(seed: int) -> Scenario:
    """The same story in a few seconds on a model without weights: for tests, not for figures."""
    return replace(
        full(seed), questions=4, every_s=0.25, indexers=3, notes_each=2, sorters=2, letters_each=1,
        local_model="tiny-random", answer_tokens=2, cut_s=20.0, requests=12, per_s=1.0, service_s=(0.02, 0.06),
        gap_s=0.005, hang=0.06, stall=0.06, hint_s=0.2, client_timeout_s=1.5, retries=3, idle_s=0.5, sweep_s=0.1,
    )  # fmt: skip


class Luck:
    """What the provider does with a request: by the seed, the call, and which attempt at it this is.

    So an agent's call meets the same luck in both runs, however the calls of all agents interleave. Requests that a
    limit turns away don't count as attempts.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._attempts: Counter[str] = Counter()

    def __call__(self, request: StubRequest) -> Behaviour:
        s = self._scenario
        call = f"{request.agent} {_first_words(request.messages)} {len(request.messages)}"
        self._attempts[call] += 1
        chance = random.Random(f"{s.seed} {call} {self._attempts[call]}")
        answer = Behaviour(
            service_s=chance.uniform(*s.service_s), output_tokens=chance.randint(*s.output_tokens), gap_s=s.gap_s,
            tool_calls=_calls(request),
        )  # fmt: skip
        kinds = [
            (s.hang, Behaviour("hang")),
            (s.stall, replace(answer, kind="stall", after=s.stall_after, tool_calls=())),
            (s.refuse_with_hint, Behaviour("rate", retry_after_s=s.hint_s)),
            (s.refuse_without_hint, Behaviour("rate")),
        ]
        faults = sum(share for share, _ in kinds)
        shares = [*(share for share, _ in kinds), 1 - faults]
        return chance.choices([*(behaviour for _, behaviour in kinds), answer], shares)[0]


def _first_words(messages: tuple[Mapping[str, Any], ...]) -> str:
    """What the agent was asked: unlike ids of tool calls it is the same in both runs."""
    asked = next((message.get("content") for message in messages if message.get("role") == "user"), "")
    return asked if isinstance(asked, str) else json.dumps(asked)


def _calls(request: StubRequest) -> tuple[ToolCall, ...]:
    """The plan of a model that is good at tools: each that it needs, once, with what was asked as argument."""
    text = _first_words(request.messages)
    return tuple(ToolCall(name, {"text": text}) for name in request.tools if name != ASK_READER or FILES in text)


QUESTIONS = (
    "why was order 1042 charged twice?",
    "which parcels are late this week?",
    "what did the customer in Lyon complain about?",
    "can order 77 still be changed?",
    "who is to blame for the broken vase?",
)
SUBJECTS = ("returns", "the Lyon depot", "parcel insurance", "refunds", "the winter sale", "address changes")
LETTERS = (
    "My parcel was to be here on Monday. Where is it?",
    "You charged my card twice for one order.",
    "The vase arrived in three pieces. I send it back.",
    "Thank you for the quick help of your team!",
)
