"""For random histories, broken or not, every compaction at every target keeps what must be kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrm.context.compact import Compactor
from agentrm.context.groups import newest_user_message
from agentrm.context.messages import Message
from agentrm.context.pairs import find_breaks, repair
from agentrm.context.result import KEPT, PAGED_OUT, SHORTENED
from agentrm.context.summarize import ModelSummarizer
from agentrm.context.tokens import TokenCounter
from agentrm.errors import ConfigError
from tests.context.histories import StrictProvider, T, U, histories

COUNTER = TokenCounter()


def fixed_part(messages) -> list[Message]:
    newest = newest_user_message(messages)
    return [m for i, m in enumerate(messages) if m.role == "system" or m.pinned or i == newest]


def check(history, result) -> None:
    assert find_breaks(result.messages) == ()
    StrictProvider().send(list(result.messages))
    must = fixed_part(repair(history).messages)
    out = {m.id: m for m in result.messages}
    for message in must:
        assert out[message.id].text.encode() == message.text.encode()
    if COUNTER.messages(must) + 60 <= result.target:
        assert result.after <= result.target, str(result)
    assert result.after == COUNTER.messages(result.messages)
    assert set(result.actions) == {m.id for m in history}
    originals = {m.id: m for m in repair(history).messages}
    for message in result.messages:
        if message.id in originals and result.actions.get(message.id) == KEPT:
            assert message.text == originals[message.id].text
    assert all(
        "shortened" in out[i].flags for i, a in result.actions.items() if a == SHORTENED and i in out
    ) or any(m.reasoning for m in history)
    people = [m for m in result.messages if m.role == "user" and not m.pinned and not m.is_summary]
    newest = newest_user_message(repair(history).messages)
    if newest is not None:
        assert people[-1].id == repair(history).messages[newest].id


@settings(max_examples=60, deadline=None)
@given(histories(broken=True), st.floats(0.02, 1.0))
def test_every_target_is_met_and_every_list_is_valid(history, share):
    target = int(share * COUNTER.messages(history))
    check(history, Compactor(COUNTER, embedder=None).compact(history, target))


@settings(max_examples=25, deadline=None)
@given(histories(), st.integers(0, 20))
def test_every_cut_by_count_is_valid(history, keep):
    result = Compactor(COUNTER, embedder=None).compact(history, 10**6, keep_last=keep)
    assert find_breaks(result.messages) == ()


@settings(max_examples=30, deadline=None)
@given(histories(), histories(), st.floats(0.1, 0.8))
def test_compacting_again_and_again_never_breaks_anything(first, second, share):
    renamed = [
        Message(f"z{m.id}", m.role, m.parts, m.name, m.created, m.flags) for m in second if not m.calls
    ]
    renamed = [m for m in renamed if m.role != "tool"]
    compactor = Compactor(COUNTER, embedder=None)
    history = first
    for n in range(4):
        result = compactor.compact(history, int(share * COUNTER.messages(history)))
        check(history, result)
        assert sum(m.is_summary for m in result.messages) <= 1
        more = [Message(f"{n}{m.id}", m.role, m.parts, m.name, m.created, m.flags) for m in renamed]
        history = [*result.messages, *more]


@settings(max_examples=25, deadline=None)
@given(histories(), st.floats(0.1, 0.9), st.sampled_from(("good", "fails", "empty", "echo", "loops")))
def test_no_summariser_can_break_a_compaction(history, share, behaviour):
    def model(messages):
        StrictProvider().send(messages)
        if behaviour == "fails":
            raise RuntimeError("down")
        return {
            "good": "alpha beta gamma",
            "empty": "",
            "echo": messages[0].text * 50,
            "loops": "la " * 3000,
        }[behaviour]

    summarizer = ModelSummarizer(model, 600, COUNTER)
    target = int(share * COUNTER.messages(history))
    result = Compactor(COUNTER, embedder=None, summarizer=summarizer).compact(history, target)
    check(history, result)
    if result.model_calls and behaviour in ("fails", "empty"):
        assert result.degraded is not None


@settings(max_examples=60, deadline=None)
@given(histories(), st.floats(0.1, 0.9), st.booleans())
def test_what_arrives_meanwhile_is_there_once_and_in_order(history, share, answered):
    result = Compactor(COUNTER, embedder=None).compact(history, int(share * COUNTER.messages(history)))
    later = [U("new one", "new1"), U("new two", "new2")]
    if answered:
        later.insert(1, T("nobody", "stray"))
    after = result.carry_over([*history, *later])
    assert [m.id for m in after if m.id.startswith("new")] == ["new1", "new2"]
    assert find_breaks(after) == ()


@pytest.mark.parametrize("size", [-1, -0.5, float("nan"), float("inf"), "100", None, True])
def test_a_target_that_is_no_size_is_refused_by_name(size):
    with pytest.raises(ConfigError, match="target: .* is not allowed; allowed: a number of tokens"):
        Compactor(embedder=None).compact([U("hello", "u")], size)


@pytest.mark.parametrize("count", [-1, 1.5, float("nan"), "3", True])
def test_a_count_of_messages_that_is_none_is_refused_by_name(count):
    with pytest.raises(ConfigError, match="keep_last: .* is not allowed"):
        Compactor(embedder=None).compact([U("hello", "u")], 100, keep_last=count)


def test_results_without_calls_are_told_as_gone_where_all_would_fit():
    history = [U("hello", "u"), T("lost", id="t")]
    result = Compactor(embedder=None).compact(history, 1000)
    assert [m.id for m in result.messages] == ["u"]
    assert result.actions == {"u": KEPT, "t": PAGED_OUT}
