"""The live run of the scheduling scenarios asks its provider for what the simulator takes the rows to mean."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from agentrm.simulation.provider import Behaviour
from agentrm.simulation.scheduling import CHUNK_S, FIRST_CHUNK_S, POLICIES
from agentrm.simulation.workload import SCENARIOS, Turn, generate
from benchmarks.live_scheduling import SETTINGS, FastClock, Script, streamed

HUNG = Turn(0.0, "a", "interactive", "default", 9.0, 450, hang=True, hang_s=70.0, luck=0.5)
RECOVERS = replace(HUNG, retry_ok=True)


def lasts(behaviour: Behaviour) -> float:
    """Seconds from the request to the last chunk."""
    assert isinstance(behaviour.service_s, float) and isinstance(behaviour.output_tokens, int)
    return behaviour.service_s + behaviour.gap_s * (-(-behaviour.output_tokens // behaviour.tokens_per_chunk) - 1)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_healthy_turn_streams_its_tokens_in_its_time_at_the_simulators_cadence(scenario: str, seed: int) -> None:
    for turn in generate(scenario, seed):
        behaviour = streamed(turn)
        assert lasts(behaviour) == pytest.approx(turn.service) and behaviour.output_tokens == turn.tokens
        if behaviour.gap_s:
            assert behaviour.service_s == FIRST_CHUNK_S
            assert 0.6 * CHUNK_S <= behaviour.gap_s <= 1.6 * CHUNK_S


def test_a_hung_turn_does_what_the_policy_s_reaper_meets() -> None:
    def script(policy: str, turn: Turn) -> list[Behaviour]:
        made = Script([turn], POLICIES[policy].reaper)
        return [made.behaviour(turn, attempt) for attempt in (1, 2)]

    assert script("fifo", HUNG)[0] == Behaviour("error", service_s=70.0)  # it ends by itself
    assert [b.kind for b in script("agentrm", HUNG)] == ["hang", "hang"]
    assert script("agentrm", RECOVERS) == [Behaviour("hang"), streamed(RECOVERS)]
    assert script("paper", HUNG)[0].kind == "hang"  # until it is killed at 20 s
    assert lasts(script("paper", RECOVERS)[0]) == pytest.approx(10.0 + 9.0)  # the retry is made on the held lane
    assert lasts(script("paper", replace(RECOVERS, luck=0.9))[0]) == pytest.approx(15.0 + 9.0)
    assert SETTINGS["paper"]["reaper"]["idle_s"] == 20.0


def test_the_fast_clock_fires_in_its_own_time() -> None:
    clock, fired = FastClock(1000), threading.Event()
    begin = clock.now_ns()
    timer = clock.call_at(begin + 10 * 10**9, fired.set)  # ten of its seconds: ten milliseconds
    assert timer.when_ns == begin + 10 * 10**9
    assert fired.wait(30) and clock.now_ns() >= timer.when_ns
