"""Looking for signs first finds every text that the patterns would find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrm.context.digest import Shown
from agentrm.context.keyinfo import extract, is_of_kind
from agentrm.context.keyinfo_patterns import KINDS, SIGNS
from agentrm.context.messages import make


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_of_a_kind_is_without_a_sign_of_it(kind: str) -> None:
    @settings(max_examples=300, deadline=None)
    @given(st.from_regex(KINDS[kind], alphabet=st.characters(codec="ascii")))
    def check(text: str) -> None:
        assert is_of_kind(text, kind)

    check()


def test_every_kind_has_signs() -> None:
    assert SIGNS.keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("The order number is 4411-B.", "order number", "4411-B"),
        ("port = 8080", "port", "8080"),
        ('{"limit": "20 GB"}', "limit", "20 GB"),
        ("We met on 12 March 2027 in Oslo; the deadline is now 3 April 2027.", "deadline", "3 April 2027"),
    ],
)
def test_values_keep_what_names_them(text: str, name: str, value: str) -> None:
    found = {fact.value: fact.name for fact in extract(make("user", text, id="m"))}
    assert found[value] == name


def test_a_value_is_shown_where_it_stands_whole() -> None:
    shown = Shown("order ORD-7731-X, C:\\tmp", "path /srv/x.py")
    shown.add("and more")
    for value in ("ORD-7731-X", "/srv/x.py", "C:\\tmp", "and more"):
        assert value in shown
    for value in ("RD-7731-X", "ORD-7731-XY", "x.pyc", "less"):
        assert value not in shown
