"""The table of a ticket's moves is one table: in the header, the documentation, the Python model and the Spin model."""

from __future__ import annotations

import re
from pathlib import Path

from tests.core.model_state import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]


def test_the_header_has_the_models_table() -> None:
    text = (ROOT / "csrc" / "arm.h").read_text()
    rows = re.findall(r"^ \* {5}(\w+) +-> +(\w+) +(\S.*)$", text, re.M)
    assert {(a, b): why for a, b, why in rows} == TRANSITIONS


def test_the_documentation_has_the_models_table() -> None:
    text = (ROOT / "docs" / "kernel.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| ([A-Z]+) \| (.*) \|$", text, re.M)
    assert {(a, b): why for a, b, why in rows} == TRANSITIONS


def test_the_spin_model_makes_every_move_and_no_other() -> None:
    text = (ROOT / "csrc" / "tests" / "ticket.pml").read_text()
    moves = re.findall(r"move\((\w+)\).*?/\* (\w+) -> (\w+) \*/", text)
    assert len(moves) == len(re.findall(r"move\([A-Z]+\)", text)), "each move names its row"
    assert all(to == target for to, _, target in moves)
    assert {(a, b) for _, a, b in moves} == set(TRANSITIONS)
