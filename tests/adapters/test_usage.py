"""The use of a call is read from what clients report; what they do not report is estimated, never zero."""

from __future__ import annotations

from types import SimpleNamespace as Object
from typing import Any

import pytest

from agentrm.adapters import CallSpec, Meter, Usage, call, estimate_text, estimate_tokens, read_usage, stream
from agentrm.adapters.conformance.harness import manager

REPORTS = {
    "openai chat": Object(
        usage=Object(prompt_tokens=100, completion_tokens=20, prompt_tokens_details=Object(cached_tokens=60))
    ),
    "openai responses": Object(
        usage=Object(input_tokens=100, output_tokens=20, input_tokens_details=Object(cached_tokens=60))
    ),
    "anthropic": Object(
        usage=Object(input_tokens=30, output_tokens=20, cache_read_input_tokens=60, cache_creation_input_tokens=10)
    ),
    "google": Object(
        usage_metadata=Object(prompt_token_count=100, candidates_token_count=20, cached_content_token_count=60)
    ),
    "langchain": Object(
        usage_metadata={
            "input_tokens": 100, "output_tokens": 20, "total_tokens": 120, "input_token_details": {"cache_read": 60},
        }
    ),
    "plain dict": {
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}},
    },
}  # fmt: skip


@pytest.mark.parametrize("client", REPORTS)
def test_each_clients_report_is_read(client: str) -> None:
    assert read_usage(REPORTS[client]) == Usage(100, 20, 60)


@pytest.mark.parametrize(
    "nothing",
    [
        Object(),
        Object(usage=None),
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0}},
        {"usage": {"prompt_tokens": None, "completion_tokens": True}},
        "a text",
        None,
        Object(usage_metadata={}),
    ],
)
def test_a_missing_or_zero_report_is_none(nothing: object) -> None:
    assert read_usage(nothing) is None


WRONG = [(10**13, 10**13), (-5, 3), ("a", "7"), (1.5, 2.5), (float("nan"), float("inf")), (None, True)]


@pytest.mark.parametrize("said", WRONG, ids=str)
@pytest.mark.parametrize("streams", [False, True])
def test_a_wrong_report_of_what_was_used_costs_no_answer(said: Any, streams: bool) -> None:
    """Whoever read it: the provider's numbers reach no arithmetic and no lease."""
    rm = manager()
    spec = CallSpec(usage=lambda _: Usage(*said), size=lambda _: 7, input_tokens=11)
    if streams:
        assert list(stream(rm, spec, lambda: iter(["an", "answer"]))) == ["an", "answer"]
    else:
        assert call(rm, spec, lambda: "answer") == "answer"
    assert rm.statistics().running == 0


def test_every_script_has_its_price() -> None:
    assert estimate_text("") == 0
    assert estimate_text("word " * 80) == 100
    assert 80 <= estimate_text("漢" * 100) <= 120
    assert 40 <= estimate_text("слово" * 20) <= 80
    assert estimate_text("a") == estimate_text("é") == 1


def test_the_texts_of_any_message_are_found() -> None:
    message = Object(
        content=[{"type": "text", "text": "word " * 40}], tool_calls=[{"name": "f", "args": {"x": "y" * 40}}]
    )
    assert 60 <= estimate_tokens(message) <= 80
    assert estimate_tokens(Object(choices=[Object(delta=Object(content="four"))])) == 1


def test_a_stream_is_metered_by_its_reports_or_by_what_came() -> None:
    def meter(*chunks: tuple[str, tuple[int, int] | None], adds: bool = False) -> Meter:
        found = Meter(lambda c: Usage(*c[1]) if c[1] else None, lambda c: estimate_text(c[0]), adds=adds)
        for chunk in chunks:
            found.add(chunk)
        return found

    words = "word " * 40
    assert meter((words, None), ("", (30, 55))).total(7, complete=True) == Usage(30, 55)
    assert meter((words, None), (words, None)).total(7, complete=True) == Usage(7, 100, 0, True)
    assert meter(("", (30, 1)), (words, (30, 60)), ("", (30, 60))).total(7, complete=True) == Usage(30, 60)
    assert meter(("", (30, 0)), (words, (0, 60)), adds=True).total(7, complete=True) == Usage(30, 60)
    assert meter(("", (30, 1)), (words, None)).total(7, complete=False) == Usage(30, 50, 0, True), "cut"
    assert meter().total(None, complete=False) == Usage(1, 1, 0, True), "never zero"
