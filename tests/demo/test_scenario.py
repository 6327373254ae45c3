"""The same seed is the same work and the same luck, however calls interleave."""

from __future__ import annotations

import pickle
import random
from typing import Any

from agentrm.demo.scenario import FILES, Luck, full, quick
from agentrm.simulation.provider import StubRequest


def a_request(agent: str, text: str, *, index: int = 0, tools: tuple[str, ...] = (), turns: int = 1) -> StubRequest:
    messages: tuple[dict[str, Any], ...] = ({"role": "user", "content": text},) * turns
    return StubRequest(
        index=index, nth_of_agent=index, arrived_s=0.0, model="m", agent=agent, stream=True, include_usage=True,
        messages=messages, tools=tools, max_tokens=None, prompt_tokens=1, body={},
    )  # fmt: skip


def test_luck_depends_on_the_call_and_its_attempt_not_on_the_order(rng: random.Random) -> None:
    scenario = full(3)
    calls = [a_request(name, text) for name in ("indexer-1", "assistant") for text in "abcdefgh"] * 3
    shuffled = calls[:]
    rng.shuffle(shuffled)

    def outcomes(order: list[StubRequest]) -> dict[str, list[object]]:
        luck, found = Luck(scenario), {}
        for request in order:
            found.setdefault(f"{request.agent} {request.messages}", []).append(luck(request))
        return found

    assert outcomes(calls) == outcomes(shuffled)


def test_another_seed_is_other_luck() -> None:
    calls = [a_request("assistant", str(n)) for n in range(50)]
    assert [Luck(full(1))(c) for c in calls] != [Luck(full(2))(c) for c in calls]


def test_faults_come_as_often_as_the_scenario_says(rng: random.Random) -> None:
    scenario = full(rng.randrange(1000))
    luck = Luck(scenario)
    kinds = [luck(a_request("assistant", str(n))).kind for n in range(20_000)]
    for kind, share in (("hang", scenario.hang), ("stall", scenario.stall)):
        assert abs(kinds.count(kind) / len(kinds) - share) < 0.01, kind


def test_the_reader_is_asked_only_for_what_is_in_the_files() -> None:
    tools = ("ask_researcher", "ask_reader")
    luck = Luck(full(0))

    def called(text: str) -> list[str]:
        for attempt in range(100):  # past the faults
            behaviour = luck(a_request("assistant", f"{text} {attempt}", tools=tools))
            if behaviour.kind == "answer":
                return [call.name for call in behaviour.tool_calls if not isinstance(call, str)]
        raise AssertionError("no answer in a hundred calls")

    assert called("why?") == ["ask_researcher"]
    assert called(f"why? {FILES}") == ["ask_researcher", "ask_reader"]


def test_work_is_drawn_from_the_seed() -> None:
    one, again, other = full(1), full(1), full(2)
    assert one == again
    assert [one.question(n) for n in range(20)] == [again.question(n) for n in range(20)]
    assert [one.question(n) for n in range(20)] != [other.question(n) for n in range(20)]
    assert len({one.question(n) for n in range(one.questions)}) == one.questions, "each question is a call of its own"


def test_a_scenario_reaches_another_process() -> None:
    assert pickle.loads(pickle.dumps(quick(1))) == quick(1)
