"""The conformance suite passes for a sound adapter and finds each defect of the broken ones."""

from __future__ import annotations

import pytest

from agentrm.adapters.conformance import Conformance, failures
from tests.adapters import toy


class TestToyAdapter(Conformance):
    harness = toy.ToyHarness()


class _Broken(toy.ToyHarness):
    def __init__(self, gate: type) -> None:
        self.gate = gate


# What a broken adapter fails first; a hang in a test takes the suite's whole patience, so only those are run.
FINDS = {
    toy.NoGate: ["test_a_sync_call_takes_one_lease_and_gives_it_back", "test_an_exhausted_quota_is_final"],
    toy.StreamUngated: ["test_a_stream_holds_its_lane_to_the_last_chunk"],
    toy.LeaksOnError: ["test_a_holder_that_raises_lets_the_next_one_in"],
    toy.ChargesNothing: ["test_what_is_charged_is_what_was_reported"],
}


@pytest.mark.parametrize("gate", FINDS, ids=lambda gate: gate.__name__)
def test_a_defect_is_found_by_the_test_that_names_it(gate: type, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrm.adapters.conformance import harness, provider

    monkeypatch.setattr(provider, "PATIENCE_S", 0.5)
    monkeypatch.setattr(harness, "PATIENCE_S", 0.5)
    found = failures(_Broken(gate), only=FINDS[gate])
    assert sorted(found) == sorted(FINDS[gate])
