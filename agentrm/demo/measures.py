"""The figures of a run, each counted from its records, and what they are held against."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentrm.demo.journal import Ask
from agentrm.demo.runner import Taken
from agentrm.demo.scenario import Scenario, role_of
from agentrm.simulation.provider import RequestRecord

__all__ = ["Bar", "Figures", "bars", "figures", "held_s", "hung", "silence_s"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds. A latency is from asking to the whole answer; of what got none, to its failure or the end of
    the run, so it is a lower bound."""

    person_asked: int
    person_answered: int
    person_latency_p50_s: float
    person_latency_p95_s: float
    others_asked: int
    others_answered: int
    others_latency_p50_s: float
    others_latency_p95_s: float
    answered: int
    failed: int
    failed_refused: int
    """Of the failed ones, those whose error was a refusal for rate."""
    unfinished: int
    """Of the failed ones, those that were cut off when the run was ended."""
    requests: int
    http_429: int
    hung_calls: int
    """Requests that fell silent: before the first byte or in the middle of a stream."""
    hung_lane_s: float
    """Seconds that all hung calls together occupied a lane of the provider."""
    hung_silence_longest_s: float
    """The longest that one of them stayed silent until somebody closed it."""
    healthy_given_up: int
    """Requests that were fine (most of them waited inside the provider) when their client gave them up; without those
    that were cut off when the run was ended."""
    lanes_leaked: int
    took_s: float

    def as_json(self) -> dict[str, Any]:
        rounded = {name: getattr(self, name) for name in self.__slots__}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in rounded.items()}


def figures(taken: Taken) -> Figures:
    person = [ask for ask in taken.journal.asks if role_of(ask.agent) == "person"]
    others = [ask for ask in taken.journal.asks if role_of(ask.agent) != "person"]
    never_asked = taken.scenario.others - len(others)  # jobs that their agent did not come to before the end
    answered, others_answered = _answered(person), _answered(others)
    still = [request for request in taken.requests if hung(request)]
    outcomes = [request.outcome for request in taken.requests]
    failed = taken.scenario.questions + taken.scenario.others - answered - others_answered
    return Figures(
        person_asked=taken.scenario.questions,
        person_answered=answered,
        person_latency_p50_s=_percentile(50, person),
        person_latency_p95_s=_percentile(95, person),
        others_asked=taken.scenario.others,
        others_answered=others_answered,
        others_latency_p50_s=_percentile(50, others),
        others_latency_p95_s=_percentile(95, others),
        answered=answered + others_answered,
        failed=failed,
        failed_refused=sum(ask.refused for ask in taken.journal.asks),
        unfinished=sum(ask.outcome == "cut" for ask in taken.journal.asks) + never_asked,
        requests=len(taken.requests),
        http_429=sum(outcome in ("rate", "quota") for outcome in outcomes),
        hung_calls=len(still),
        hung_lane_s=sum(map(held_s, still)),
        hung_silence_longest_s=max((silence_s(request, taken.scenario) for request in still), default=0.0),
        healthy_given_up=sum(
            request.outcome == "abandoned" and request.ended_s + taken.provider_began_s < taken.stopped_s
            for request in taken.requests
        ),
        lanes_leaked=taken.left_open,
        took_s=taken.ended_s,
    )


def hung(request: RequestRecord) -> bool:
    """Whether it fell silent for good."""
    return request.outcome in ("hung", "stalled")


def held_s(request: RequestRecord) -> float:
    """How long it occupied a lane of the provider; waiting inside the provider occupies none."""
    return 0.0 if request.taken_up_s is None else request.ended_s - request.taken_up_s


def silence_s(request: RequestRecord, scenario: Scenario) -> float:
    """From the last sign of life that the client can have had to the end."""
    if request.first_chunk_s is None:
        return request.ended_s - request.arrived_s
    return request.ended_s - request.first_chunk_s - (request.chunks_sent - 1) * scenario.gap_s


def _answered(asks: Iterable[Ask]) -> int:
    return sum(ask.outcome == "answered" for ask in asks)


def _percentile(percent: int, asks: list[Ask]) -> float:
    """The nearest rank: one of the values measured, never one between two."""
    waited = sorted(ask.ended_s - ask.asked_s for ask in asks)
    return waited[math.ceil(percent / 100 * len(waited)) - 1] if waited else 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that must hold with agentrm; `found` is what was measured, in words."""

    claim: str
    found: str
    met: bool


CLOSING_S = 0.1
"""What a timer and the closing of a connection may take beside: the silence is measured at the provider."""


def bars(scenario: Scenario, without: Figures, with_: Figures) -> list[Bar]:
    most, longest = scenario.idle_s + scenario.sweep_s, with_.hung_silence_longest_s
    times = without.person_latency_p95_s / with_.person_latency_p95_s if with_.person_latency_p95_s else 0.0
    return [
        Bar("the person's p95 is at most a fifth", f"{times:.1f} times less", times >= 5),
        Bar(
            f"each hung call's lane is free after {scenario.idle_s:g} s of silence plus one sweep of "
            f"{scenario.sweep_s:g} s, seen by the provider within {CLOSING_S:g} s",
            f"at most {longest:.2f} s",
            longest <= most + CLOSING_S,
        ),
        Bar("no lane is leaked", f"{with_.lanes_leaked}", with_.lanes_leaked == 0),
        Bar("no agent fails because it was refused", f"{with_.failed_refused}", with_.failed_refused == 0),
    ]
