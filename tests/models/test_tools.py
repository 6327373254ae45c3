"""What the clients of the frameworks share: conversations as turns of text, tools as others describe them, choices."""

from __future__ import annotations

from typing import Any

import pytest

from agentrm.models import LocalEngine, ToolSpec, UnsupportedSchema
from agentrm.models.tools import Said, call_text, choice_of, result_text, turns

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}


def test_results_of_one_step_stand_together_and_those_of_another_step_apart() -> None:
    told = turns([
        Said("user", "Look"), Said("assistant", "", [("a", "{}"), ("b", {"x": 1})]),
        Said("tool", "one", result=True), Said("tool", "two", result=True),
        Said("assistant", "more", [("a", "{}")]), Said("tool", "three", result=True), Said("user", "And?"),
    ])  # fmt: skip
    assert told == [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": call_text("a", "{}") + "\n" + call_text("b", '{"x": 1}')},
        {"role": "user", "content": result_text("one") + "\n" + result_text("two")},
        {"role": "assistant", "content": "more\n" + call_text("a", "{}")},
        {"role": "user", "content": result_text("three")},
        {"role": "user", "content": "And?"},
    ]


def test_a_call_is_told_in_the_letters_that_the_model_wrote_it_in() -> None:
    assert "Zürich" in turns([Said("assistant", "", [("go", {"city": "Zürich"})])])[0]["content"]


def test_a_call_with_half_a_surrogate_pair_from_elsewhere_can_be_told(tiny: LocalEngine) -> None:
    told = turns([Said("user", "Go"), Said("assistant", "", [("go", {"city": "\ud83c"})]), Said("user", "Now?")])
    assert list(tiny.respond(told, max_new_tokens=1))[-1].usage is not None


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_tool_is_taken_as_the_openai_api_describes_it(wrapped: bool) -> None:
    function = {"name": "go", "description": "Goes", "parameters": CITY}
    assert ToolSpec.of({"type": "function", "function": function} if wrapped else function) == ToolSpec("go", "Goes", CITY)
    assert ToolSpec.of({"name": "go", "description": None, "parameters": None}) == ToolSpec("go")
    with pytest.raises(UnsupportedSchema, match="pattern"):
        ToolSpec.of({"name": "go", "parameters": {"type": "object", "properties": {"a": {"pattern": "x"}}}})


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (None, "auto"), (False, "auto"), ("auto", "auto"), (True, "any"), ("required", "any"), ("any", "any"),
        ("none", "none"), ("go", "go"), ({"type": "function", "function": {"name": "go"}}, "go"),
        ({"type": "tool", "name": "go"}, "go"), ({"type": "none"}, "none"),
    ],
)  # fmt: skip
def test_every_spelling_of_a_choice_is_understood(asked: Any, choice: str) -> None:
    assert choice_of(asked) == choice
