"""An id that stands once in a long history survives every compaction to any size that can hold it, whole."""

from __future__ import annotations

import pytest

from agentrm.context.compact import Compactor
from agentrm.context.keyinfo import opaque_strings
from agentrm.context.messages import Message, make
from agentrm.context.summarize import ModelSummarizer
from agentrm.context.tokens import TokenCounter

COUNTER = TokenCounter()
KEY = "The order number is ORD-7731-X and the deadline is 2027-03-04."


def history(place: int, filler: int = 60) -> list[Message]:
    """The key message among talk of no weight; messages of one size, so that sizes fit or miss by a whole one."""
    talk = [
        make("assistant", f"Some words of no weight about the weather, day {day}. " * 8, id=f"day-{day}")
        for day in range(filler)
    ]
    talk.insert(place, make("user", KEY, id="key"))
    return [*talk, make("user", "go on", id="last")]


def shown(messages: tuple[Message, ...]) -> str:
    return "\n".join(message.text for message in messages)


@pytest.mark.parametrize("place", [0, 1, 30, 59, 60])
def test_at_every_target_wherever_it_stood(place: int) -> None:
    compactor, messages = Compactor(COUNTER, embedder=None), history(place)
    lost = []
    for target in range(150, COUNTER.messages(messages), 50):
        result = compactor.compact(messages, target)
        assert result.after <= target
        if "ORD-7731-X" not in shown(result.messages) or "2027-03-04" not in shown(result.messages):
            lost.append(target)
    assert not lost, f"lost at targets {lost}"


@pytest.mark.parametrize("query", [None, "What is the order number?"])
def test_through_compaction_after_compaction(query: str | None) -> None:
    compactor, messages = Compactor(COUNTER, embedder=None), tuple(history(0))
    for day in range(100, 700, 60):
        new = (make("user", f"Some more talk of day {n}. " * 12, id=f"m{n}") for n in range(day, day + 60))
        messages = compactor.compact([*messages, *new], 1500, query=query).messages
        assert "ORD-7731-X" in shown(messages), f"lost before day {day + 60}"


@pytest.mark.parametrize("target", range(300, 3000, 300))
def test_beside_a_model_that_forgets_it(target: int) -> None:
    asked: list[int] = []

    def forgetful(messages: list[Message]) -> str:
        asked.append(len(messages))
        return "There was talk about the weather, some words of no weight."

    writer = ModelSummarizer(forgetful, 100_000, COUNTER)
    result = Compactor(COUNTER, embedder=None, summarizer=writer).compact(history(0), target)
    assert "ORD-7731-X" in shown(result.messages) and result.after <= target
    assert len(asked) == result.model_calls == 1, "the model was asked again for a choice made anew"


@pytest.mark.parametrize(
    "whole",
    ["ORD-7731-X", "INV-2024-0031", "abc1234f-dev", "v1.2.3-rc1", "#4411-b", "ISO-8859-1", "AB12/CD34", "1234-5678-90",
     "550e8400-e29b-41d4-a716-446655440000-x", "ZQ9#77", "TX.9981.B"],
)  # fmt: skip
def test_half_an_id_is_none(whole: str) -> None:
    found = [value for _, value in opaque_strings(f"It is {whole}, or ({whole}).")]
    assert all(value == whole for value in found) and found


@pytest.mark.parametrize("text", ["PROJ-12, then PROJ-13.", "(PROJ-12); PROJ-13!", '["PROJ-12", "PROJ-13"]'])
def test_what_stands_beside_an_id_is_no_part_of_it(text: str) -> None:
    assert [value for _, value in opaque_strings(text)] == ["PROJ-12", "PROJ-13"]
