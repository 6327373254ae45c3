"""Calls and results stay in pairs; what is broken is mended and reported."""

from __future__ import annotations

from hypothesis import given, settings

from agentrm.context.groups import groups_of, newest_user_message
from agentrm.context.open_calls import AWAITING_APPROVAL, OpenCalls
from agentrm.context.pairs import find_breaks, is_valid, repair
from tests.context.histories import A, StrictProvider, T, U, histories


def kinds(events):
    return [e.kind for e in events]


def test_a_valid_list_comes_back_as_the_same_objects():
    history = [U("x", "u"), A("", "a", "c1", "c2"), T("c2"), T("c1"), A("y", "b")]
    repaired = repair(history)
    assert all(x is y for x, y in zip(repaired.messages, history, strict=True)) and not repaired.events


def test_an_orphan_result_goes_and_is_named():
    repaired = repair([U("x", "u"), T("ghost"), A("y", "a")])
    assert [m.id for m in repaired.messages] == ["u", "a"]
    assert [(e.kind, e.call_id) for e in repaired.events] == [("orphan_result", "ghost")]


def test_a_lost_call_is_closed_with_a_synthetic_error():
    repaired = repair([U("x", "u"), A("", "a", "c1"), U("y", "v")])
    result = repaired.messages[2].results[0]
    assert result.call_id == "c1" and result.is_error and "interrupted" in result.text
    assert kinds(repaired.events) == ["closed_call"]


def test_a_late_result_moves_to_its_call():
    repaired = repair([A("", "a", "c1"), U("y", "v"), T("c1", "late")])
    assert [m.id for m in repaired.messages] == ["a", "t-c1", "v"]
    assert kinds(repaired.events) == ["late_result"]


def test_of_two_answers_the_first_stays():
    repaired = repair([A("", "a", "c1"), T("c1", "first"), T("c1", "second", id="x")])
    assert [m.text for m in repaired.messages[1:]] == ["first"]
    assert kinds(repaired.events) == ["answered_twice"]


def test_a_reused_call_id_is_renamed_with_its_result():
    repaired = repair([A("", "a", "c"), T("c", "1", id="x"), A("", "b", "c"), T("c", "2", id="y")])
    assert [c.id for m in repaired.messages for c in m.calls] == ["c", "c.2"]
    assert [r.call_id for m in repaired.messages for r in m.results] == ["c", "c.2"]
    assert is_valid(repaired.messages)


def test_an_open_call_shows_a_placeholder_that_the_answer_replaces():
    calls = OpenCalls.of({"c1": AWAITING_APPROVAL})
    history = [A("", "a", "c1"), U("meanwhile", "u")]
    shown = repair(history, calls).messages
    assert "approval" in shown[1].text and "pending" in shown[1].flags
    calls.answer("c1")
    answered = repair([*shown, T("c1", "yes")], calls).messages
    assert [m.text for m in answered] == ["", "yes", "meanwhile"]


def test_an_expired_call_says_so():
    calls = OpenCalls()
    calls.open("c1", state=AWAITING_APPROVAL, now=0.0, expires_after=60.0)
    assert calls.expire(59.0) == () and [c.id for c in calls.expire(60.0)] == ["c1"]
    assert "expired" in repair([A("", "a", "c1")], calls).messages[1].text
    assert calls.answer("c1") is False


def test_open_calls_survive_storage():
    calls = OpenCalls.of({"c1": AWAITING_APPROVAL, "c2": "executing"})
    calls.cancel("c2")
    back = OpenCalls.from_json(calls.to_json())
    assert back.outcome("c1") == AWAITING_APPROVAL and back.outcome("c2") == "cancelled"


def test_the_newest_user_message_is_a_persons():
    history = [U("x", "u"), A("y", "a"), U("notes", "n", "summary"), U("rule", "p", "pinned")]
    assert newest_user_message(history) == 0


@settings(max_examples=80, deadline=None)
@given(histories(broken=True))
def test_whatever_is_broken_is_mended(history):
    repaired = repair(history)
    assert find_breaks(repaired.messages) == ()
    StrictProvider().send(list(repaired.messages))
    assert repair(repaired.messages).messages == repaired.messages
    texts = {m.text for m in history if m.role != "tool"}
    assert texts == {m.text for m in repaired.messages if m.role != "tool"}


@settings(max_examples=80, deadline=None)
@given(histories())
def test_groups_cover_the_list_and_every_cut_between_them_is_valid(history):
    history = list(repair(history).messages)
    groups = groups_of(history)
    assert [m for g in groups for m in g.messages] == history
    for cut in range(len(groups) + 1):
        assert is_valid([m for g in groups[cut:] for m in g.messages])
        assert is_valid([m for g in groups[:cut] for m in g.messages])
