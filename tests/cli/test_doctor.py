"""`agentrm doctor` says what works, what does not and what to write."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrm.cli import doctor
from agentrm.cli.main import main


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The frameworks that are there, name to version; empty until a test fills it."""
    packages: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_version", packages.get)
    return packages


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that are registered."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(doctor, "entry_points", lambda group: EntryPoints(found).select(group=group))
    return found


def core(monkeypatch: pytest.MonkeyPatch, *, fault: str | None = None) -> None:
    def load(name: str) -> Any:
        if fault:
            raise ImportError(fault)
        module = ModuleType(name)
        module.__file__ = "/somewhere/core.so"
        return module

    monkeypatch.setattr(doctor, "import_module", load)


WORKING = EntryPoint("langchain", "collections:OrderedDict", "agentrm.adapters")


def test_all_is_well_when_core_and_extensions_load(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch)
    registered.append(WORKING)
    installed.update({"langchain": "1.5.2", "langchain-core": "1.8.3"})
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert version("agentrm") in text
    assert "loaded from /somewhere/core.so" in text
    assert "langchain 1.5.2, langchain-core 1.8.3" in text
    assert "middleware=[AgentRMMiddleware(rm)]" in text
    assert "crewai" in text and "not installed" in text
    assert "0 problems" in text


def test_a_core_that_does_not_load_is_a_problem_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch, fault="undefined symbol: arm_submit")
    registered.append(WORKING)
    assert main(["doctor"]) == 1
    assert "undefined symbol: arm_submit" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["no.such.module:x", "collections:no_such_thing"])
def test_a_broken_extension_is_named_and_the_others_still_load(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
    value: str,
) -> None:
    core(monkeypatch)
    registered += [EntryPoint("stranger", value, "agentrm.stores"), WORKING]
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert f"stranger ({value})" in text
    assert "langchain (collections:OrderedDict)" in text
    assert "1 problem" in text


def test_an_extension_that_raises_anything_at_all_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch)
    (tmp_path / "angry_extension.py").write_text("raise RuntimeError('boom at import')")
    monkeypatch.syspath_prepend(tmp_path)
    registered.append(EntryPoint("angry", "angry_extension:x", "agentrm.policies"))
    assert main(["doctor"]) == 1
    assert "RuntimeError: boom at import" in capsys.readouterr().out


def test_our_adapter_without_its_framework_is_no_problem(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch)
    registered.append(EntryPoint("crewai", "no_such_crewai:adapter", "agentrm.adapters"))
    assert main(["doctor"]) == 0
    assert "crewai is not installed" in capsys.readouterr().out


def test_every_adapter_of_ours_has_its_framework_and_lines() -> None:
    assert set(doctor.FRAMEWORKS) == {point.name for point in entry_points(group="agentrm.adapters")}


def test_our_adapter_that_fails_beside_its_framework_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch)
    installed["crewai"] = "1.15.30"
    registered.append(EntryPoint("crewai", "no_such_crewai:adapter", "agentrm.adapters"))
    assert main(["doctor"]) == 1
    assert "no working adapter" in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("name", "package"), [("autogen", "autogen-agentchat"), ("crewai", "crewai")])
def test_a_framework_without_an_adapter_is_not_advertised(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installed: dict[str, str],
    registered: list[EntryPoint],
    name: str,
    package: str,
    there: bool,
) -> None:
    core(monkeypatch)
    registered.append(WORKING)
    installed.update({package: "1.2.3"} if there else {})
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.partition("Frameworks")[2].splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.split()[:1] == [name]]
    assert "no adapter yet" in lines[at + there]
    assert f"agentrm[{name}]" not in "".join(lines)
    assert "rm.attach" not in "".join(lines)


def test_a_package_whose_entry_points_are_not_seen_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], registered: list[EntryPoint]
) -> None:
    core(monkeypatch)
    assert main(["doctor"]) == 1


def test_a_good_configuration_is_shown_setting_by_setting(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    installed: dict[str, str],
    registered: list[EntryPoint],
) -> None:
    core(monkeypatch)
    registered.append(WORKING)
    path = tmp_path / "agentrm.yaml"
    path.write_text("pools: {gpt: {lanes: 8}}")
    assert main(["doctor", "--config", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  pools.gpt.lanes = 8" in lines
    assert "  reaper.run_s = 600.0  (default)" in lines


@pytest.mark.parametrize("text", ["pools: {gpt: {lane: 8}}", "pools: {", None])
def test_a_bad_or_missing_configuration_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    installed: dict[str, str],
    registered: list[EntryPoint],
    text: str | None,
) -> None:
    core(monkeypatch)
    registered.append(WORKING)
    path = tmp_path / "agentrm.yaml"
    if text is not None:
        path.write_text(text)
    assert main(["doctor", "--config", str(path)]) == 1
    assert "PROBLEM" in capsys.readouterr().out


def test_a_file_in_place_of_the_folder_of_environments_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    assert main(["doctor", "--environments", str(file)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--environments" in last and str(file) in last and "allowed: a folder" in last
