"""The documentation of the configuration is the code's own."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from agentrm.config import Config, parse
from agentrm.config.reference import PLACES, renew
from agentrm.config.schema import Section, about

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def yaml_blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_shows_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renew(page) == page, "run: python -m agentrm.config.reference docs/configuration.md"


def test_every_section_is_on_the_page() -> None:
    missing = {kind.__name__ for kind in Section.__subclasses__()} - {
        kind.__name__ for kind in (*PLACES, Config)
    }
    # A dataclass with slots is made twice, and both are subclasses; names are what counts.
    assert not missing


@pytest.mark.parametrize("kind", [*PLACES, Config], ids=lambda kind: kind.__name__)
def test_every_key_says_what_it_means(kind: type[Section]) -> None:
    for one in fields(kind):  # type: ignore[arg-type]
        assert about(kind, one.name).endswith("."), one.name


def test_the_example_is_read_and_shows_every_section() -> None:
    (example,) = yaml_blocks()
    config = parse(example)
    defaults = parse("")
    unchanged = [one.name for one in fields(Config) if one.name not in example]
    assert not unchanged
    assert config.scheduling == defaults.scheduling  # the example shows these defaults
    assert config.reaper == defaults.reaper
    assert config.waiting == defaults.waiting
