"""Where a configuration comes from: a YAML file, YAML text, or plain mappings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.config.configuration import CONFIG, Config
from agentrm.errors import ConfigError

if TYPE_CHECKING:
    import yaml


def load(source: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None) -> Config:
    """The configuration in a YAML file (`source` is its path) or in plain mappings with the same keys.

    None is the configuration in which every key has its default. Raises `ConfigError`, naming the full dotted
    key, the value and what is allowed, for whatever can't work; `OSError` if the file can't be read.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, (str, os.PathLike)):
        return parse(Path(source).read_bytes(), name=os.fspath(source))
    return CONFIG.read(source, "")


def parse(text: str | bytes, name: str = "the configuration") -> Config:
    """The configuration in the YAML text `text`; `name` stands for it in errors about its syntax."""
    import yaml  # slow to import, and not needed by those who configure in Python

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                _refuse_duplicates(node, "", set())
            plain = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # dates that do not exist, ten thousand brackets
        given, why = _place_of(error)
        raise ConfigError(name, given, f"one YAML document with plain values ({why})") from error
    return CONFIG.read(plain, "")


def _place_of(error: Exception) -> tuple[str, str]:
    """The line that YAML stumbled over, and over what."""
    import yaml

    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark is not None:
        mark = error.problem_mark
        snippet = mark.get_snippet(indent=0) or ""
        return f"line {mark.line + 1}: {snippet.partition(chr(10))[0]}", error.problem
    return "this text", " ".join(str(error).split())


def _refuse_duplicates(node: yaml.Node, path: str, seen: set[int]) -> None:
    """Keys are unique in YAML, but PyYAML takes the last one: half of a configuration would vanish in
    silence."""
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for position, entry in enumerate(node.value):
            _refuse_duplicates(entry, f"{path}[{position}]", seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue  # no key of ours: reading the mapping refuses it
            key = f"{path}.{name.value}" if path else name.value
            line = name.start_mark.line + 1
            if name.value in lines:
                raise ConfigError(key, f"line {line}", f"each key once; line {lines[name.value]} has it too")
            lines[name.value] = line
            _refuse_duplicates(value, key, seen)
