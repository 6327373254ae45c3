"""What a model writes under a schema is valid for it, however weak the model."""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest

from agentrm.errors import ConfigError
from agentrm.models import GenerationCancelled, LocalEngine, PromptTooLong, ToolSpec, UnsupportedSchema
from agentrm.models.constrained import ConstrainedWriter, number_complete, number_viable
from agentrm.models.schema import Number, compile_schema
from agentrm.models.sequence import Sampler, TokenSequence
from agentrm.models.tokenizer import toy

ASK = [{"role": "user", "content": "Go"}]


def conforms(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """JSON Schema for what `random_schema` makes, written apart from the code under test."""
    if "$ref" in schema:
        return conforms(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(conforms(value, branch, root) for branch in schema["anyOf"])
    kind = schema["type"]
    if kind == "string":
        long_enough = isinstance(value, str) and len(value) >= schema.get("minLength", 0)
        return long_enough and len(value) <= schema.get("maxLength", 10**9)
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else int | float):
            return False
        over = value > schema.get("exclusiveMinimum", -(10**99)) and value >= schema.get("minimum", -(10**99))
        return over and value < schema.get("exclusiveMaximum", 10**99) and value <= schema.get("maximum", 10**99)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if kind == "array":
        fits = isinstance(value, list) and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 99)
        return fits and all(conforms(item, schema["items"], root) for item in value)
    known, required = schema["properties"], schema["required"]
    if not isinstance(value, dict) or not set(required) <= set(value) <= set(known):
        return False
    return all(conforms(part, known[name], root) for name, part in value.items())


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "bounded string", "integer", "number", "boolean", "null", "enum", "ref"]
    kind = rng.choice(kinds + (["array", "object", "anyOf"] if depth < 2 else []))
    if kind == "bounded string":
        low = rng.randrange(5)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(4)}
    if kind == "integer":
        low = rng.randrange(-2000, 2000)
        return rng.choice([{}, {"minimum": low, "maximum": low + rng.randrange(900)}, {"exclusiveMinimum": low}]) | {
            "type": kind
        }
    if kind == "number":
        low = rng.uniform(-50, 50)
        return rng.choice([{}, {"minimum": low, "maximum": low + 0.01}, {"exclusiveMaximum": 0}]) | {"type": kind}
    if kind == "enum":
        return {"enum": rng.sample(["a", "ab", "abc", "ü", '"', 1, 10, 100, True, None, "\n"], rng.randrange(1, 6))}
    if kind == "ref":
        return {"$ref": "#/$defs/Colour"}
    if kind == "array":
        low = rng.randrange(3)
        return {"type": kind, "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + 2}
    if kind == "object":
        names = rng.sample(["a", "ab", "the name", 'q"uote', "é"], rng.randrange(4))
        properties = {name: random_schema(rng, depth + 1) for name in names}
        return {"type": kind, "properties": properties, "required": [n for n in names if rng.random() < 0.6]}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    return {"type": kind}


class Wishes:
    """A sequence whose model wants to write one text and then end its turn, whatever was written instead."""

    def __init__(self, text: str) -> None:
        self.wanted, self.written = [*text.encode(), toy().marks["<|im_end|>"]], 0

    def append(self, tokens: list[int]) -> None:
        self.written += len(tokens)

    def ranked(self, sampler: Sampler) -> Any:
        logits = pytest.importorskip("torch").linspace(0.0, 1.0, len(toy()))
        logits[self.wanted[min(self.written, len(self.wanted) - 1)]] = 9.0
        return sampler.ranked(logits)


def writer_that_wants(text: str, budget: int = 1000) -> ConstrainedWriter:
    return ConstrainedWriter(cast("TokenSequence", Wishes(text)), toy(), Sampler(0.0, None), budget)


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        (r'"with \"quotes\", a \\ and \n"', {"type": "string"}),
        ('"äöü 🎉"', {"type": "string", "maxLength": 5}),
        ("-12.5", {"type": "number"}),
        ("0", {"type": "integer"}),
        ("-7", {"type": "integer", "minimum": -10, "maximum": -5}),
        ('["a", "b"]', {"type": "array", "items": {"enum": ["a", "b"]}}),
        ("[]", {"type": "array", "items": {"type": "integer"}}),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ("7", {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ('{"a": 1}', {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}),
        ('{"b": true}', {"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}),
        ("{}", {"properties": {"a": {"type": "integer"}}}),
    ],
)
def test_a_model_that_wants_something_valid_gets_its_way(wanted: str, schema: dict[str, Any]) -> None:
    assert "".join(writer_that_wants(wanted).value(compile_schema(schema))) == wanted


@pytest.mark.parametrize(
    ("wanted", "schema", "written"),
    [
        ('"abcdef"', {"type": "string", "maxLength": 3}, '"abc"'),
        ('"line\nbreak', {"type": "string", "maxLength": 4}, '"line"'),
        ("99", {"type": "integer", "maximum": 50}, "9"),
        ("3.14", {"type": "integer"}, "3"),
    ],
)
def test_a_model_that_wants_something_invalid_is_held_to_the_schema(
    wanted: str, schema: dict[str, Any], written: str
) -> None:
    assert "".join(writer_that_wants(wanted).value(compile_schema(schema))) == written


def test_a_string_is_closed_when_the_budget_is_used_up() -> None:
    text = "".join(writer_that_wants('"' + "x" * 100, budget=10).value(compile_schema({"type": "string"})))
    assert text == '"' + "x" * 5 + '"'


def call(model: LocalEngine, schema: dict[str, Any], **options: Any) -> Any:
    pieces = list(model.respond(ASK, [ToolSpec("act", "", schema)], tool_choice="act", **options))
    assert {piece.tool for piece in pieces[:-1]} == {"act"}
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.finish_reason == "tool_calls"
    return json.loads("".join(piece.text for piece in pieces))


def test_arguments_conform_to_any_schema_at_any_temperature_and_budget(tiny: LocalEngine, rng: random.Random) -> None:
    for round_ in range(150):
        schema = {
            "type": "object",
            "properties": {"x": random_schema(rng), "y": random_schema(rng)},
            "required": ["x"],
            "$defs": {"Colour": {"enum": ["red", "green"]}},
        }
        options = {
            "temperature": rng.choice([0.0, 0.7, 3.0]),
            "seed": rng.randrange(1000),
            "max_new_tokens": rng.choice([1, 20, 60]),
        }
        value = call(tiny, schema, **options)
        assert conforms(value, schema, schema), f"round {round_}: {value} for {schema} with {options}"


def test_no_number_outside_its_range_and_every_one_inside_can_be_written() -> None:
    def reachable(node: Number, written: str = "") -> set[int]:
        found = {int(written)} if number_complete(written, node) else set()
        for character in "-0123456789.":
            if number_viable(written + character, node):
                found |= reachable(node, written + character)
        return found

    for low in range(-13, 14):
        for high in range(low, 14):
            assert reachable(Number(1, low, high)) == set(range(low, high + 1)), (low, high)


def test_the_model_chooses_between_options_even_when_one_begins_another(tiny: LocalEngine) -> None:
    options = ["a", "ab", "abc", "b", "ü", "aü"]
    for option in options:
        assert writer_that_wants(option + ".").choose(options) == option
        assert writer_that_wants(option).choose(options) == option
    assert writer_that_wants("nothing of that").choose(options) in options
    assert tiny.choose(ASK, ["only"]) == "only"
    for wrong in ([], ["a", "a"], ["a", ""]):
        with pytest.raises(ConfigError, match="options"):
            tiny.choose(ASK, wrong)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": "^a$"}, "pattern"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "without numbers"),
        ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf"),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": {"anyOf": [{"$ref": "#/$defs/Node"}]}}}, "inside itself"),
        ({"$ref": "#/$defs/Gone"}, "Gone"),
        ({"type": "object", "properties": {}, "required": ["x"]}, "'x'"),
        ({"enum": []}, "empty enum"),
    ],
)
def test_a_schema_that_cannot_be_promised_is_refused_when_the_tool_is_made(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedSchema, match=named):
        compile_schema(schema)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "half \ud83c", {1, 2}], ids=["nan", "inf", "surrogate", "set"]
)
def test_a_constant_that_json_cannot_write_is_refused(value: object) -> None:
    for schema in ({"const": value}, {"enum": ["a", value]}):
        with pytest.raises(UnsupportedSchema, match="properties/a"):
            ToolSpec("act", "", {"type": "object", "properties": {"a": schema}})


def test_a_schema_of_thousands_of_levels_is_refused_and_not_followed() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(3000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(UnsupportedSchema, match="deep"):
        ToolSpec("act", "", deep)


@pytest.mark.parametrize(
    "part",
    [
        {"properties": 5}, {"properties": {5: {}}}, {"required": 5}, {"required": "a"}, {"enum": 5}, {"enum": {"x": 1}},
        {"anyOf": 5}, {"type": 5}, {"type": []}, {"$ref": 5}, {"type": "string", "minLength": -5},
        {"type": "string", "maxLength": "x"}, {"type": "array", "minItems": "x"}, {"type": "array", "maxItems": True},
        {"type": "array", "minItems": 3, "maxItems": 2}, {"type": "number", "minimum": float("nan")},
        {"type": "number", "maximum": float("inf")}, {"type": "integer", "exclusiveMinimum": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_a_keyword_of_a_wrong_kind_is_refused_by_its_place(part: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema, match="properties/a"):
        compile_schema({"type": "object", "properties": {"a": part}})


def test_a_schema_whose_shortest_value_or_references_have_no_end_is_refused_at_once() -> None:
    for endless in ({"type": "string", "minLength": 10**12}, {"type": "array", "items": {}, "minItems": 10**12}):
        with pytest.raises(UnsupportedSchema, match="long"):
            compile_schema({"type": "object", "properties": {"a": endless}, "required": ["a"]})
    twice = [{"type": "object", "properties": {n: {"$ref": f"#/$defs/{i + 1}"} for n in "ab"}} for i in range(60)]
    defs: dict[str, Any] = {str(i): one for i, one in enumerate([*twice, {"type": "null"}])}
    with pytest.raises(UnsupportedSchema, match="large"):
        compile_schema({"$ref": "#/$defs/0", "$defs": defs})


def test_a_tool_may_be_named_like_a_choice(tiny: LocalEngine) -> None:
    tools = [ToolSpec("any"), ToolSpec("other")]
    chosen = {
        next(tiny.respond(ASK, tools, tool_choice="any", temperature=50, seed=seed)).tool for seed in range(12)
    }
    assert chosen == {"any", "other"}


def test_a_tool_choice_that_does_not_exist_is_refused(tiny: LocalEngine) -> None:
    with pytest.raises(ConfigError, match="tool_choice"):
        tiny.respond(ASK, [ToolSpec("act")], tool_choice="fly")
    with pytest.raises(ConfigError, match="tool_choice"):
        tiny.respond(ASK, [], tool_choice="any")


def test_a_call_that_cannot_fit_the_context_is_refused_before_it_starts(tiny: LocalEngine) -> None:
    wide = {"type": "object", "properties": {"x": {"type": "string", "minLength": 5000}}, "required": ["x"]}
    with pytest.raises(PromptTooLong, match="4096"):
        tiny.respond(ASK, [ToolSpec("act", "", wide)], tool_choice="act")


def test_a_cancelled_call_is_an_error_and_not_half_a_call(tiny: LocalEngine) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 50}}, "required": ["x"]}
    cancelled = False
    pieces = tiny.respond(ASK, [ToolSpec("act", "", schema)], tool_choice="act", cancelled=lambda: cancelled)
    next(pieces)
    cancelled = True
    with pytest.raises(GenerationCancelled):
        list(pieces)


def test_auto_decides_between_answer_and_tools_and_any_always_calls(tiny: LocalEngine) -> None:
    tools = [ToolSpec("look"), ToolSpec("act")]

    def chosen(tool_choice: str) -> set[str | None]:
        draws = (
            next(tiny.respond(ASK, tools, tool_choice=tool_choice, temperature=50, seed=s, max_new_tokens=1))
            for s in range(40)
        )
        return {piece.tool for piece in draws}

    assert chosen("auto") == {"look", "act", None}
    assert chosen("any") == {"look", "act"}
    assert chosen("none") == {None}
    assert chosen("look") == {"look"}


@pytest.mark.model
def test_the_real_model_fills_in_what_the_user_said(smollm2: LocalEngine) -> None:
    weather = ToolSpec(
        "get_weather",
        "Weather of a city",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )
    ask = [{"role": "user", "content": "What's the weather in Paris?"}]
    pieces = list(smollm2.respond(ask, [weather], tool_choice="any", max_new_tokens=40))
    value = json.loads("".join(piece.text for piece in pieces))
    assert list(value) == ["city"]
    assert isinstance(value["city"], str)
