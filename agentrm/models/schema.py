"""The part of JSON Schema that constrained decoding can promise to satisfy, as a small tree.

Reads what pydantic and the agent frameworks write for tools: objects, arrays, strings with lengths, numbers
with bounds, booleans, null, enum, const, anyOf and local references. What cannot be promised (pattern,
multipleOf, ...) is refused, never skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from agentrm.models.errors import UnsupportedSchema

INTEGER_DIGITS, FRACTION_DIGITS = 15, 6
MAX_DEPTH = 128  # of a place in a schema, in steps of its path
MAX_ITEMS = 8  # of an array whose schema sets no maximum
MAX_PLACES = 10_000  # of a schema, references followed
MAX_SIZE = 1 << 17  # of what has to be written in any case, in characters

# Say nothing about which values are valid, or nothing that a written value could violate.
_ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format", "$schema",
    "$id", "$defs", "definitions", "$comment", "additionalProperties", "discriminator", "strict",
    "contentMediaType",
}  # fmt: skip
_KEYWORDS = {
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set[str](),
    "null": set[str](),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required"},
}


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _finite(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _object(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_SHAPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "$ref": (lambda value: isinstance(value, str), "a text"), "properties": (_object, "an object"),
    "required": (_texts, "a list of texts"),
    "type": (lambda value: isinstance(value, str) or (_texts(value) and bool(value)), "a text or a list of texts"),
    **dict.fromkeys(("enum", "anyOf", "oneOf", "allOf"), (_list, "a list")),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (_whole, "a whole number, at least 0")),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_finite, "a finite number")),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Literals:
    """One of these JSON texts."""

    texts: tuple[str, ...]

    @property
    def openers(self) -> str:
        return "".join(text[0] for text in self.texts)


@dataclass(frozen=True, slots=True)
class Text:
    """A string of `shortest` to `longest` characters (None: no maximum)."""

    shortest: int = 0
    longest: int | None = None
    openers: str = field(default='"', init=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `low` to `high`, both included, counted in steps of 1 / `scale` (1 for integers)."""

    scale: int
    low: int
    high: int
    openers: str = field(default="-0123456789", init=False)


@dataclass(frozen=True, slots=True)
class Items:
    """An array of `fewest` to `most` values."""

    item: Node
    fewest: int
    most: int
    openers: str = field(default="[", init=False)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    node: Node
    required: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """An object; its fields are written in this order."""

    fields: tuple[Field, ...]
    openers: str = field(default="{", init=False)


@dataclass(frozen=True, slots=True)
class Either:
    """A value of any of these kinds; what the model wants to begin with decides."""

    branches: tuple[Node, ...]

    @property
    def openers(self) -> str:
        return "".join(branch.openers for branch in self.branches)


Node: TypeAlias = "Literals | Text | Number | Items | Fields | Either"


def compile_schema(schema: Mapping[str, Any]) -> Node:
    """The tree of a schema. Raises UnsupportedSchema, which names the place, for what cannot be promised."""
    node = _node(schema, _Root(schema), "#", ())
    if _least(node) > MAX_SIZE:
        raise UnsupportedSchema("#", "values that long", f"some value of at most {MAX_SIZE:,} characters")
    return node


@dataclass(slots=True)
class _Root:
    """What references refer to, and how many places were looked at."""

    schema: Mapping[str, Any]
    places: int = 0


def _least(node: Node) -> int:
    """The size of `shortest`, which is not written for it."""
    if isinstance(node, Text):
        return node.shortest + 2
    if isinstance(node, Items):
        return 2 + node.fewest * (_least(node.item) + 2)
    if isinstance(node, Fields):
        return 2 + sum(len(f.name) + 6 + _least(f.node) for f in node.fields if f.required)
    if isinstance(node, Either):
        return min(map(_least, node.branches))
    return len(shortest(node))


def shortest(node: Node) -> str:
    """The shortest JSON text of that shape, near enough: what has to be written whatever the model
    chooses.
    """
    if isinstance(node, Literals):
        return min(node.texts, key=len)
    if isinstance(node, Text):
        return '"' + "x" * node.shortest + '"'
    if isinstance(node, Number):
        return "0"
    if isinstance(node, Items):
        return "[" + ", ".join([shortest(node.item)] * node.fewest) + "]"
    if isinstance(node, Fields):
        required = [f"{json.dumps(f.name)}: {shortest(f.node)}" for f in node.fields if f.required]
        return "{" + ", ".join(required) + "}"
    return min((shortest(branch) for branch in node.branches), key=len)


def _node(schema: Any, root: _Root, where: str, refs: tuple[str, ...]) -> Node:
    if where.count("/") > MAX_DEPTH:
        raise UnsupportedSchema(where[:80] + "...", "a schema that deep", f"places of at most {MAX_DEPTH} steps")
    root.places += 1
    if root.places > MAX_PLACES:
        raise UnsupportedSchema(where[:80], "a schema that large", f"{MAX_PLACES:,} places, references followed")
    if schema is True:
        return Text()
    if not isinstance(schema, Mapping):
        raise UnsupportedSchema(where, schema, "an object")
    for keyword, (fits, expected) in _SHAPES.items():
        if keyword in schema and not fits(schema[keyword]):
            raise UnsupportedSchema(f"{where}/{keyword}", schema[keyword], expected)
    if "$ref" in schema:
        _only(schema, {"$ref"}, where)
        return _referenced(schema["$ref"], root, where, refs)
    if "const" in schema:
        return Literals((_json(schema["const"], where),))
    if "enum" in schema:
        if not schema["enum"]:
            raise UnsupportedSchema(where, "an empty enum", "at least one value")
        return Literals(tuple(dict.fromkeys(_json(value, where) for value in schema["enum"])))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            branches = schema[keyword]
            _only(schema, {keyword, "type"}, where)
            if not branches or (keyword == "allOf" and len(branches) != 1):
                raise UnsupportedSchema(where, keyword, "anyOf, oneOf, or allOf of one schema")
            return _either([_node(b, root, f"{where}/{keyword}/{i}", refs) for i, b in enumerate(branches)])
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind is None:
        _only(schema, set(), where)
        return Text()
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return _either([_typed(one, schema, root, where, refs) for one in kind])
    _only(schema, {"type"} | _KEYWORDS.get(kind, set()), where)
    return _typed(kind, schema, root, where, refs)


def _typed(kind: str, schema: Mapping[str, Any], root: _Root, where: str, refs: tuple[str, ...]) -> Node:
    if kind == "string":
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if high is not None and high < low:
            raise UnsupportedSchema(where, f"{low} to {high} characters", "a range with values in it")
        return Text(low, high)
    if kind in ("integer", "number"):
        return _number(1 if kind == "integer" else 10**FRACTION_DIGITS, schema, where)
    if kind == "boolean":
        return Literals(("true", "false"))
    if kind == "null":
        return Literals(("null",))
    if kind == "array":
        low = schema.get("minItems", 0)
        if schema.get("maxItems", low) < low:
            raise UnsupportedSchema(where, f"{low} to {schema['maxItems']} items", "a range with arrays in it")
        item = _node(schema.get("items", True), root, f"{where}/items", refs)
        return Items(item, low, schema.get("maxItems", max(low, MAX_ITEMS)))
    if kind == "object":
        required = set(schema.get("required", ()))
        properties = schema.get("properties", {})
        if undefined := sorted(required - set(properties)):
            raise UnsupportedSchema(where, f"required {undefined[0]!r}", "required names that have a schema")
        return Fields(
            tuple(
                Field(name, _node(part, root, f"{where}/properties/{name}", refs), name in required)
                for name, part in properties.items()
            )
        )
    raise UnsupportedSchema(where, kind, ", ".join(_KEYWORDS))


def _number(scale: int, schema: Mapping[str, Any], where: str) -> Number:
    high = 10**INTEGER_DIGITS * scale - 1
    low = -high
    if "minimum" in schema:
        low = max(low, math.ceil(Fraction(schema["minimum"]) * scale))
    if "exclusiveMinimum" in schema:
        low = max(low, math.floor(Fraction(schema["exclusiveMinimum"]) * scale) + 1)
    if "maximum" in schema:
        high = min(high, math.floor(Fraction(schema["maximum"]) * scale))
    if "exclusiveMaximum" in schema:
        high = min(high, math.ceil(Fraction(schema["exclusiveMaximum"]) * scale) - 1)
    if low > high:
        raise UnsupportedSchema(where, "a range without numbers", f"a range with steps of 1/{scale} in it")
    return Number(scale, low, high)


def _referenced(ref: str, root: _Root, where: str, refs: tuple[str, ...]) -> Node:
    if ref in refs:
        raise UnsupportedSchema(where, f"{ref} inside itself", "schemas of finite depth")
    target: Any = root.schema
    if not ref.startswith("#/"):
        raise UnsupportedSchema(where, ref, "references inside the schema (#/...)")
    for part in ref[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or part not in target:
            raise UnsupportedSchema(where, ref, "references to something that exists")
        target = target[part]
    return _node(target, root, where, (*refs, ref))


def _either(branches: list[Node]) -> Node:
    return branches[0] if len(branches) == 1 else Either(tuple(branches))


def _only(schema: Mapping[str, Any], keywords: set[str], where: str) -> None:
    for keyword in schema:
        if keyword not in keywords and keyword not in _ANNOTATIONS:
            raise UnsupportedSchema(where, keyword, ", ".join(sorted(keywords)) or "no constraint here")


def _json(value: Any, where: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise UnsupportedSchema(where, value, "values that JSON in UTF-8 can write") from error
    return text
