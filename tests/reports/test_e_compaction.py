"""Bug reports about context compaction, each as a small offline case."""

from __future__ import annotations

import hashlib
import logging
import uuid

import pytest

from agentrm.clock import VirtualClock
from agentrm.context.compact import Compactor
from agentrm.context.messages import PINNED, Message, Reasoning, Text
from agentrm.context.open_calls import AWAITING_APPROVAL, OpenCalls
from agentrm.context.pairs import is_valid, repair
from agentrm.context.summarize import ModelSummarizer
from agentrm.context.tokens import TokenCounter
from tests.context.histories import A, S, StrictProvider, T, U, turns

BIG = 10**6


def compactor(**options) -> Compactor:
    return Compactor(TokenCounter(), embedder=None, **options)


def size(messages) -> int:
    return TokenCounter().messages(messages)


def shown(result) -> str:
    return "\n".join(m.text for m in result.messages)


def test_r69_a_call_without_a_result_at_the_cut_is_closed():
    history = [S("rules"), U("one", "u1"), A("ok", "a1"), U("two", "u2"), A("", "a2", "c1")]
    result = compactor().compact(history, BIG, keep_last=2)
    StrictProvider().send(list(result.messages))
    assert "two" in [m.text for m in result.messages]


def test_r72_the_last_n_never_begin_with_a_tool_result():
    history = [
        U("q", "u"),
        A("", "a", "c1"),
        T("c1"),
        U("q2", "u2"),
        A("x", "a2"),
        U("q3", "u3"),
        A("y", "a3"),
    ]
    for count in range(1, 8):
        result = compactor().compact(history, BIG, keep_last=count)
        assert next(m for m in result.messages if m.role != "system").role != "tool"
        assert is_valid(result.messages)
    kept = [m.id for m in compactor().compact(history, BIG, keep_last=5).messages if not m.is_summary]
    assert kept == ["a", "t-c1", "u2", "a2", "u3", "a3"]


@pytest.mark.parametrize("large", range(7))
def test_r73_whole_groups_go_whatever_is_large(large):
    long = "some words that fill the room " * 40
    texts = [long if i == large else "short text" for i in range(7)]
    history = [
        U(texts[0], "u1"),
        A(texts[1], "a1", "c1"),
        T("c1", texts[2]),
        U(texts[3], "u2"),
        A(texts[4], "a2", "c2"),
        T("c2", texts[5]),
        U(texts[6], "u3"),
    ]
    for share in (0.3, 0.5, 4 / 7, 0.9):
        result = compactor().compact(history, int(size(history) * share))
        assert is_valid(result.messages)
        StrictProvider().send(list(result.messages))


def test_r75_an_open_approval_survives_until_it_is_answered():
    calls = OpenCalls()
    calls.open("c1", state=AWAITING_APPROVAL, now=0.0, expires_after=3600.0)
    history = [U("pay it", "u"), A("", "ask", "c1"), *turns(24)]
    result = compactor().compact(history, int(size(history) * 0.3), open_calls=calls)
    assert any(c.id == "c1" for m in result.messages for c in m.calls)
    StrictProvider().send(list(result.messages))

    calls.answer("c1")
    answered = result.carry_over([*history, T("c1", "approved")], calls)
    StrictProvider().send(list(answered))
    assert [m.text for m in answered if m.results] == ["approved"]


def test_r75_without_an_answer_it_expires_and_may_go():
    calls = OpenCalls()
    calls.open("c1", state=AWAITING_APPROVAL, now=0.0, expires_after=3600.0)
    history = [U("pay it", "u"), A("", "ask", "c1"), *turns(24)]
    assert [c.id for c in calls.expire(now=3600.0)] == ["c1"]
    assert calls.outcome("c1") == "expired"
    result = compactor().compact(history, int(size(history) * 0.2), open_calls=calls)
    assert not any(c.id == "c1" for m in result.messages for c in m.calls)


def test_r76_a_lost_call_does_not_turn_compaction_off(caplog):
    history = [U("go", "u"), A("", "lost", "c1")]
    target = 400
    with caplog.at_level(logging.INFO, "agentrm.context"):
        for n in range(0, 100, 2):
            history += turns(2, start=n)
            if size(history) > 700:
                result = compactor().compact(history, target)
                assert result.after <= target and is_valid(result.messages)
                history = list(result.messages)
    assert any("c1" in r.getMessage() and "closed" in r.getMessage() for r in caplog.records)


def parallel_history():
    return [
        S("Be exact."),
        U("check both", "u1", PINNED),
        A("", "a1", "c1", "c2"),
        T("c1", "left is 4411 " * 60),
        T("c2", "right is 5522 " * 60),
        *turns(10),
        U("and now?", "last"),
    ]


def test_r77_the_summary_request_keeps_parallel_calls_in_pairs():
    provider = StrictProvider()

    def model(messages):
        provider.send(messages)
        return "Both sides were checked: left is 4411, right is 5522, questions were answered."

    summarizer = ModelSummarizer(model, 8000, TokenCounter())
    result = compactor(summarizer=summarizer).compact(parallel_history(), 500)
    assert provider.requests == result.model_calls == 1
    assert result.degraded is None and "Both sides were checked" in shown(result)
    assert result.after <= 500


def test_r77_a_failing_summariser_is_reported_and_keeps_what_must_stay():
    def model(messages):
        raise ValueError("400 bad request")

    summarizer = ModelSummarizer(model, 8000, TokenCounter())
    result = compactor(summarizer=summarizer).compact(parallel_history(), 500)
    assert "400 bad request" in result.degraded
    texts = [m.text for m in result.messages]
    assert "Be exact." in texts and "check both" in texts and "and now?" in texts
    assert result.after <= 500 and is_valid(result.messages)


def test_r79_rules_are_byte_identical_after_five_passes():
    rules = "1. Never guess.\n2. Keep  two  spaces.\n3. Use tabs\there.\u00a0"
    pin = "never add co-author lines to commits"
    history = [S(rules), *turns(60), U(pin, "pin", PINNED), *turns(90, start=60)]
    for n in range(5):
        result = compactor().compact(history, int(size(history) * 0.3))
        history = [*result.messages, *turns(20, start=1000 + 20 * n)]
        assert result.messages[0].text.encode() == rules.encode()
        assert result.messages[1].text.encode() == pin.encode()


def test_r80_the_current_request_stays_whole_in_mid_turn():
    request = "do X; then Y with 17 retries; then Z in /srv/app/z.py"
    history = [*turns(100), U(request, "now"), A("", "a1", "c1"), T("c1", "line of output 7\n" * 6000)]
    assert size(history) > 30_000
    result = compactor().compact(history, 3000)
    assert result.after <= 3000
    assert [m.text for m in result.messages if m.id == "now"] == [request]
    assert any(r.call_id == "c1" for m in result.messages for r in m.results)


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 5, 17, 30, 59, 60])
def test_r81_no_gap_and_no_overlap(keep):
    history = [U(f"mark m{n}x", f"i{n}") if n % 2 == 0 else A(f"mark m{n}x", f"i{n}") for n in range(1, 61)]
    given: set[str] = set()

    def model(messages):
        found = {w for m in messages for w in m.text.split() if w.startswith("m") and w.endswith("x")}
        given.update(found)
        return "The marks so far were " + " ".join(sorted(found))

    summarizer = ModelSummarizer(model, 8000, TokenCounter())
    result = compactor(summarizer=summarizer).compact(history, BIG, keep_last=keep)
    kept = {
        w
        for m in result.messages
        if not m.is_summary
        for w in m.text.split()
        if w.startswith("m") and w != "mark"
    }
    assert given | kept == {f"m{n}x" for n in range(1, 61)}
    assert not given & kept


def test_r83_identifiers_at_the_end_of_a_long_summary_survive_the_cap():
    ids = [str(uuid.UUID(hashlib.md5(bytes([n])).hexdigest())) for n in range(30)]
    paths = [f"/srv/data/part{n}/file_{n}.bin" for n in range(10)]
    history = [S("s")]
    for n, value in enumerate(ids + paths):
        history += [U(f"note number {n} please", f"u{n}"), A(f"Stored as {value} for later.", f"a{n}")]
    history += turns(40)
    calls = 0

    def model(messages):
        nonlocal calls
        calls += 1
        return "The notes were stored for later and questions were answered. " * 600 + "\n".join(ids + paths)

    summarizer = ModelSummarizer(model, 100_000, TokenCounter())
    result = compactor(summarizer=summarizer).compact(history, 3500, keep_last=2)
    assert all(value in shown(result) for value in ids + paths)
    assert result.after <= 3500 and calls == 1
    assert len(shown(result)) <= 16_000


def test_r84_strings_that_the_model_changed_are_replaced_by_the_originals():
    originals = [
        "3f2b8c1e-9a4d-4e6f-8b7a-1c2d3e4f5a6b",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
        "10.12.0.7:5433",
        "https://example.org/api?page=3&key=ab12",
        "OPS-48213",
        r"C:\Users\ada\report.docx",
    ]
    corrupted = [o[:-1] + ("9" if o[-1] != "9" else "8") for o in originals]
    history = [
        *(A(f"We need {o} later.", f"a{n}") for n, o in enumerate(originals)),
        *turns(40),
        U("go on", "last"),
    ]
    summarizer = ModelSummarizer(
        lambda messages: "We need these later: " + " , ".join(corrupted) + " and questions were answered.",
        50_000,
        TokenCounter(),
    )
    result = compactor(summarizer=summarizer).compact(history, 900)
    text = shown(result)
    assert all(o in text for o in originals)
    assert not any(c in text for c in corrupted)


def test_r85_what_arrives_during_compaction_is_carried_over():
    clock = VirtualClock()
    calls = OpenCalls.of({"c9": "executing"})
    session = [*turns(40), A("", "a9", "c9")]
    snapshot = list(session)

    def model(messages):  # the clock runs while the model works; others append
        clock.advance(2)
        session.append(U("stop at step 4", "stop"))
        clock.advance(1)
        session.append(T("c9", "nine"))
        calls.answer("c9")
        clock.advance(2)
        return "Questions were answered with word lists."

    summarizer = ModelSummarizer(model, 50_000, TokenCounter())
    result = compactor(summarizer=summarizer).compact(snapshot, 400, open_calls=calls)
    after = result.carry_over(session, calls)
    ids = [m.id for m in after]
    assert ids.count("stop") == 1 and [m.text for m in after if m.results] == ["nine"]
    assert ids[-1] == "stop" and is_valid(after)
    StrictProvider().send(list(after))


def test_r86_the_newest_request_is_the_last_user_message():
    history = [
        S("s"),
        U("do A with the blue boxes", "A"),
        A("Done with A.", "done"),
        *turns(30),
        U("instead do B", "B"),
        A("", "a", "c1"),
        T("c1", "working"),
    ]
    result = compactor().compact(history, 300)
    people = [m for m in result.messages if m.role == "user" and not m.is_summary]
    assert people[-1].text == "instead do B" and [m.id for m in people].count("B") == 1
    notes = [m for m in result.messages if m.is_summary]
    assert len(notes) == 1 and "summary" in notes[0].flags and "not a request" in notes[0].text
    for line in notes[0].text.splitlines():
        if "do A with the blue boxes" in line:
            assert "done or superseded" in line


@pytest.mark.parametrize("tokens", [9_990, 10_400, 60_000])
def test_r88_compaction_succeeds_from_any_size(tokens):
    counter = TokenCounter()
    history = [S("s")]
    n = 0
    while size(history) < tokens:
        history += turns(2, words=120, start=n)
        n += 2
    asked: list[int] = []

    def model(messages):
        asked.append(counter.messages(messages))
        if asked[-1] > 10_000:
            raise ValueError("context length exceeded")
        return "Questions were answered with word lists."

    summarizer = ModelSummarizer(model, 10_000, counter)
    result = compactor(summarizer=summarizer).compact(history, 5000)
    assert result.after <= 5000 and result.degraded is None
    assert asked and max(asked) <= 10_000


@pytest.mark.parametrize(("window", "calls"), [(128_000, 1), (20_000, 4)])
def test_r90_the_summarisers_own_window_counts(window, calls):
    counter = TokenCounter()
    history = []
    while size(history) < 78_000:
        history += turns(2, words=400, start=len(history))
    asked: list[int] = []

    def model(messages):
        asked.append(counter.messages(messages))
        return "Questions were answered with word lists."

    summarizer = ModelSummarizer(model, window, counter)
    result = compactor(summarizer=summarizer).compact(history, 29_000)
    assert result.after <= 29_000
    assert max(asked) <= window and (len(asked) == 1 if calls == 1 else len(asked) >= 2)


def signed(n: int) -> Message:
    block = Reasoning(f"thinking about {n}", f"sig{n}", {"type": "thinking", "signature": f"sig{n}"})
    return Message(f"a{n}", "assistant", (block, Text(f"answer {n}")))


def test_r92_signed_reasoning_is_whole_or_absent():
    history = [S("s")]
    for n in range(6):
        history += [U(f"question {n}", f"u{n}"), signed(n)]
    signatures = {
        f"sig{n}": (f"thinking about {n}", tuple(m.id for m in history[: 2 * n + 2])) for n in range(6)
    }
    StrictProvider(signatures).send(history)
    original = {r.signature: r for m in history for r in m.reasoning}
    for keep in range(1, 13):
        result = compactor().compact(history, BIG, keep_last=keep)
        for block in (r for m in result.messages for r in m.reasoning):
            assert block == original[block.signature]
        StrictProvider(signatures).send(list(result.messages))
    untouched = compactor().compact(history, BIG, keep_last=99)
    assert len([r for m in untouched.messages for r in m.reasoning]) == 6


def test_a_valid_history_that_fits_is_left_alone():
    history = turns(6)
    result = compactor().compact(history, BIG)
    assert result.messages == tuple(history) and not result.changed
    assert repair(history).messages == tuple(history)
