"""Every code block of the README and of docs/ works: Python runs, YAML is a configuration, commands exist.

The Python blocks of one page run one after the other in one namespace, as a reader would type them, in an empty
directory, with OPENAI_BASE_URL pointing at a loopback provider.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN, PARSE, COMMAND, TEXT = {"python", "py"}, {"yaml"}, {"sh", "bash", "console"}, {"text", "json", "c", "promela"}
MAKE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    language, start, lines = "", 0, list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if start:
                yield Block(start, language, "\n".join(lines))
                start = 0
            else:
                language, start, lines = line[3:].strip(), number + 1, []
        elif start:
            lines.append(line)
    assert not start, f"{page.name}: the block at line {start} does not end"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    stub = pytest.importorskip("agentrm.simulation.provider")
    with stub.StubProvider() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
        monkeypatch.chdir(tmp_path)
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_is_of_a_kind_that_is_tested(page: Path) -> None:
    for block in blocks(page):
        assert block.language in RUN | PARSE | COMMAND | TEXT, f"{page.name}:{block.line}: {block.language!r}"


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language in RUN for b in blocks(p))], ids=lambda p: p.name)
def test_the_python_of_a_page_runs(page: Path, provider: None) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language in RUN:
            padded = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's own lines
            exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language in PARSE for b in blocks(p))], ids=lambda p: p.name)
def test_the_yaml_of_a_page_is_a_configuration(page: Path) -> None:
    from agentrm.config import parse

    for block in blocks(page):
        if block.language in PARSE:
            parse(block.text)


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    for block in blocks(page):
        if block.language in COMMAND:
            for offset, line in enumerate(block.text.splitlines()):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words and (block.language != "console" or line.startswith("$ ")):
                    yield block.line + offset, words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    from agentrm.cli.main import parser_for

    for line, words in commands(page):
        where = f"{page.name}:{line}: {shlex.join(words)}"
        if words[0] == "make":
            assert [w for w in words[1:] if "=" not in w and w not in MAKE] == [], where
        elif words[0] == "agentrm":
            try:
                parser_for(words[1] if len(words) > 1 else None)[0].parse_args(words[1:])
            except SystemExit as end:
                assert end.code == 0, where
        elif words[0] == "pip":
            named = re.findall(r"(?:agentrm|\.)\[([a-z,-]+)\]", " ".join(words))
            assert set(",".join(named).split(",")) - {""} <= extras(), where


def extras() -> set[str]:
    section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[", 1)[0]
    return set(re.findall(r"^([a-z-]+) = ", section, re.M))
