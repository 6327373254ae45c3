"""The command line: each command on its own feet, and an exit status that tells the truth."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrm.cli import main as command_line
from agentrm.cli.main import COMMANDS, Command, main
from agentrm.errors import ConfigError


def install(monkeypatch: pytest.MonkeyPatch, name: str, run: Any) -> None:
    """Makes `agentrm NAME` run the function `run`."""
    module = ModuleType(f"made_up_{name}")

    def add_parser(commands: Any) -> None:
        commands.add_parser(name).add_argument("--number", type=int, default=0)

    module.add_parser = add_parser  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, name, Command(module.__name__, "made up"))


def test_a_command_gets_its_arguments_and_gives_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "count", lambda arguments: arguments.number)
    assert main(["count", "--number", "3"]) == 3
    assert main(["count"]) == 0


def test_a_command_that_returns_nothing_has_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "quiet", lambda arguments: None)
    assert main(["quiet"]) == 0


def test_a_command_that_cannot_be_loaded_names_what_to_install_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "broken", Command("no.such.module", "broken", extra="demo"))
    install(monkeypatch, "fine", lambda arguments: 0)
    assert main(["broken"]) == 1
    assert "pip install 'agentrm[demo]'" in capsys.readouterr().err
    assert main(["fine"]) == 0


def test_an_error_of_ours_is_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(arguments: argparse.Namespace) -> int:
        raise ConfigError("pools.gpt.lanes", 0, "a whole number of at least 1")

    install(monkeypatch, "refused", refuse)
    assert main(["refused"]) == 2
    assert capsys.readouterr().err.startswith("agentrm refused: pools.gpt.lanes: 0")


def test_a_command_that_lacks_something_only_when_it_runs_names_its_extra_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise ModuleNotFoundError("No module named 'langchain'", name="langchain")

    install(monkeypatch, "late", fail)
    monkeypatch.setitem(COMMANDS, "late", COMMANDS["late"]._replace(extra="demo"))
    assert main(["late"]) == 1
    said = capsys.readouterr().err
    assert "needs langchain" in said and "pip install 'agentrm[demo]'" in said


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "needs numpy for this, which is not installed"),
        (FileNotFoundError(2, "No such file or directory", "no.yaml"), "No such file or directory: 'no.yaml'"),
        (OSError(98, "address already in use"), "address already in use"),
    ],
)
def test_what_the_machine_lacks_is_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception, line: str
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise fault

    install(monkeypatch, "lacking", fail)
    assert main(["lacking"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("agentrm lacking") and line in said and said.count("\n") == 1
    assert "numpy" not in said or "pip install numpy" in said


@pytest.mark.parametrize("fault", [ZeroDivisionError(), ModuleNotFoundError("ours", name="agentrm.gone")])
def test_a_fault_of_the_programme_is_not_hidden(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise fault

    install(monkeypatch, "faulty", fail)
    with pytest.raises(type(fault)):
        main(["faulty"])


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    install(monkeypatch, "long", interrupted)
    assert main(["long"]) == command_line.INTERRUPTED


@pytest.mark.parametrize(
    "line", [[], ["nonsense"], ["--nonsense"], ["count", "--number", "x"], ["count", "extra"]]
)
def test_bad_usage_exits_with_2(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> None:
    install(monkeypatch, "count", lambda arguments: 0)
    with pytest.raises(SystemExit) as left:
        main(line)
    assert left.value.code == 2


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentrm", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("agentrm ")


def test_output_that_nobody_reads_any_more_is_no_fault() -> None:
    reader = subprocess.run(
        f"{sys.executable} -m agentrm doctor --config /dev/null | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in reader.stderr
    assert "Exception ignored" not in reader.stderr


HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def without(hidden: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script where these packages are not installed."""
    return subprocess.run([sys.executable, "-c", HIDE.format(hidden=hidden) + script], capture_output=True, text=True)


@pytest.mark.parametrize(
    "hidden,line,extra",
    [
        (("aiohttp",), ["serve", "--backend", "http://127.0.0.1:1"], "agentrm[gateway]"),
        (("rich",), ["demo", "--quick"], "agentrm[demo]"),
        (("torch", "langchain"), ["demo", "--quick"], "agentrm[demo]"),
    ],
)
def test_a_command_shows_what_it_can_do_without_its_extra_and_names_it_when_it_runs(
    hidden: tuple[str, ...], line: list[str], extra: str
) -> None:
    run = "from agentrm.cli.main import main; raise SystemExit(main({!r}))"
    shown = without(hidden, run.format([line[0], "--help"]))
    assert shown.returncode == 0 and "usage" in shown.stdout
    done = without(hidden, run.format(line))
    assert done.returncode == 1 and f"pip install '{extra}'" in done.stderr and "Traceback" not in done.stderr


def test_the_gateway_without_its_extra_names_it() -> None:
    done = without(("aiohttp",), "from agentrm.gateway import Gateway")
    assert "needs aiohttp" in done.stderr.splitlines()[-1] and "agentrm[gateway]" in done.stderr.splitlines()[-1]


def test_a_simulation_that_needs_a_package_says_which_to_install(tmp_path: Path) -> None:
    requests = [{"t": 0.0, "in": 640, "out": 5, "api": 1.0, "stop": "tool_use", "h": [[1, 10]]}]
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "s", "block": 64, "requests": requests}))
    line = ["simulate", "kv", "--trace", str(tmp_path / "t.jsonl"), "--format", "claude-code", "--capacity", "64000"]
    done = without(("numpy",), f"from agentrm.cli.main import main; raise SystemExit(main({line!r}))")
    assert done.returncode == 1 and "pip install numpy" in done.stderr and "Traceback" not in done.stderr


FILES = {
    "garbled.json": bytes(range(255, 100, -1)),
    "deep.json": b"[" * 200_000,
    "cut.gz": b"\x1f\x8b\x08junk",
    "torn.gz": gzip.compress(b'{"messages": []}' * 5000)[:60],
    "empty.json": b"",
    "other.json": b'{"a": 1}',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "line",
    [
        ("evaluate", "trajectories", "--dataset"),
        ("evaluate", "context", "--format", "locomo", "--dataset"),
        ("evaluate", "context", "--format", "conversation", "--dataset"),
        ("simulate", "scheduling", "--scenario"),
        ("simulate", "kv", "--format", "mooncake", "--trace"),
        ("simulate", "programs", "--format", "claude-code", "--trace"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_read_is_said_in_one_line(
    line: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert main([*line, str(tmp_path / name)]) in (1, 2)
    said = capsys.readouterr().err
    assert name in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        ("simulate", "scheduling", "--mix", "nan/1/1"),
        ("simulate", "scheduling", "--mix", "inf/1/1"),
        ("simulate", "scheduling", "--lanes", "99999999999999999999"),
        ("simulate", "scheduling", "--tail", "nan"),
        ("evaluate", "synthetic", "--seeds", "0"),
        ("evaluate", "trajectories", "--dataset", "x", "--limit", "nan"),
        ("sessions", "--store", "nowhere", "list"),
    ],
    ids=" ".join,
)
def test_an_argument_that_cannot_be_is_said_in_one_line_with_status_2(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    said = capsys.readouterr().err
    assert line[-2] in said or "--store" in said
    assert said.count("\n") == 1
