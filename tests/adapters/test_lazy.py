"""A plugin's names are loaded when they are used, and a framework that is missing is said with the extra that brings it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from agentrm.adapters import FrameworkMissing
from agentrm.errors import AgentRMError

PACKAGE = """
from agentrm.adapters import lazy
__getattr__ = lazy(__name__, {"fine": "good", "gate": "lacking", "broken": "faulty"}, extra="acme")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "acme_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "good.py").write_text("fine = 7")
    (folder / "lacking.py").write_text("import no_such_acme.client\ngate = 1")
    (folder / "faulty.py").write_text("import agentrm.no_such_room\nbroken = 1")
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("acme_plugin")
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_plugin"]:
        del sys.modules[name]


def test_a_submodule_is_loaded_at_the_first_use_of_its_name(plugin: ModuleType) -> None:
    assert "acme_plugin.good" not in sys.modules
    assert plugin.fine == 7
    assert "acme_plugin.good" in sys.modules


def test_a_missing_framework_is_named_with_the_extra_that_brings_it(plugin: ModuleType) -> None:
    with pytest.raises(FrameworkMissing, match=r"acme_plugin needs no_such_acme, .*pip install 'agentrm\[acme\]'") as told:
        assert plugin.gate
    assert isinstance(told.value, ImportError) and isinstance(told.value, AgentRMError)
    assert told.value.name == "no_such_acme"


def test_a_fault_of_ours_is_not_blamed_on_the_framework(plugin: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError) as told:
        assert plugin.broken
    assert not isinstance(told.value, FrameworkMissing)


def test_a_name_that_is_none_is_an_attribute_error(plugin: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        assert plugin.other


@pytest.mark.parametrize("name", ["langchain", "autogen", "crewai", "openai", "openai_agents", "maf"])
def test_each_of_our_plugins_names_an_extra_that_exists(name: str) -> None:
    text = Path(import_module(f"agentrm_{name}").__file__ or "").read_text()
    extra = name.replace("_", "-")
    assert f'lazy(__name__, _HOME, extra="{extra}")' in text
    assert f"\n{extra} = [" in (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
