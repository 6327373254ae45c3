"""`agentrm doctor`: what is installed, what works, the line to write for each framework that is there, and what dead
processes left behind.

The exit status is 1 if something that is installed does not work, the configuration is refused, or something is left of
tool environments whose owner is dead; a framework that is not installed is no fault.
"""

from __future__ import annotations

import argparse
import platform
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, NamedTuple

from agentrm.config import Config, load
from agentrm.errors import ConfigError
from agentrm.tools import clean, default_home, leftovers

CORE = "agentrm.core._agentrm_core"

KINDS = ("adapters", "policies", "summarizers", "embedders", "stores", "backends", "environments")
EXTENSION_GROUPS = tuple(f"agentrm.{kind}" for kind in KINDS)


class Framework(NamedTuple):
    packages: tuple[str, ...]
    lines: tuple[str, ...]


FRAMEWORKS = {
    "langchain": Framework(
        ("langchain", "langchain-core", "langgraph"),
        (
            "from agentrm_langchain import AgentRMMiddleware",
            "agent = create_agent(model, tools, middleware=[AgentRMMiddleware(rm)])",
            "model = rm.attach(model)    # or so, where there is no create_agent",
        ),
    ),
    "autogen": Framework(
        ("autogen-agentchat", "autogen-core"),
        ("team = rm.attach(team)    # or an agent, a model client, a workbench",),
    ),
    "crewai": Framework(("crewai",), ("rm.attach(crew)",)),
    "openai": Framework(("openai",), ("client = rm.attach(openai.OpenAI())    # AsyncOpenAI, AzureOpenAI, too",)),
    "openai-agents": Framework(("openai-agents",), ("agent = rm.attach(agent)    # or a model, a RunConfig",)),
    "maf": Framework(("agent-framework-core",), ("agent = rm.attach(agent)    # or a client, a tool",)),
}
"""By the name of the adapter: the distributions that make up the framework, the first of them essential."""


class _Report:
    """Prints findings as they are made and counts the bad ones."""

    def __init__(self) -> None:
        self.problems = 0

    def heading(self, text: str) -> None:
        print(f"\n{text}")

    def fine(self, subject: str, text: str) -> None:
        print(f"  {subject:<14} {text}")

    def problem(self, subject: str, text: str) -> None:
        self.problems += 1
        self.fine(subject, f"PROBLEM: {text}")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is installed, what works, and the lines to write",
        description="Versions, whether the C core loads, the frameworks and extensions found with their "
        "errors, the lines that put each framework under agentrm, and tool environments whose owner is dead.",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="check this configuration and show every setting in force"
    )
    parser.add_argument(
        "--environments", metavar="FOLDER", help="where tool environments are (default: as configured, or as usual)"
    )
    parser.add_argument(
        "--clean", action="store_true", help="remove tool environments of dead owners: processes, folders, containers"
    )


def run(arguments: argparse.Namespace) -> int:
    report = _Report()
    _versions(report)
    _frameworks(report, _extensions(report))
    config = None if arguments.config is None else _configuration(report, arguments.config)
    home = arguments.environments or (config.environments.home if config is not None else None)
    _environments(report, default_home() if home is None else Path(home).expanduser(), arguments.clean)
    print(f"\n{report.problems} problems" if report.problems != 1 else "\n1 problem")
    return 1 if report.problems else 0


def _versions(report: _Report) -> None:
    print("Installation")
    report.fine("agentrm", version("agentrm"))
    report.fine("Python", f"{platform.python_version()} on {platform.platform()}: {sys.executable}")
    try:
        core = import_module(CORE)
    except ImportError as error:
        report.problem("C core", f"not loaded: {error}. Build it: pip install --force-reinstall agentrm")
    else:
        report.fine("C core", f"loaded from {core.__file__}")


def _extensions(report: _Report) -> dict[str, bool]:
    """Loads every extension that is registered; returns the names of the adapters and whether each works."""
    report.heading("Extensions")
    adapters: dict[str, bool] = {}
    found = [entry for group in EXTENSION_GROUPS for entry in entry_points(group=group)]
    if not found:
        report.problem("", "none is registered, not even ours: agentrm is not installed as a package")
    for entry in found:
        kind = entry.group.partition(".")[2]
        works = False
        try:
            entry.load()
        except Exception as error:  # noqa: BLE001 - whatever a stranger's module raises is what we are here to show
            if (missing := _missing_framework(entry, error)) is not None:
                report.fine(kind, f"{entry.name}: not in use, {missing} is not installed")
            else:
                report.problem(kind, f"{entry.name} ({entry.value}): {type(error).__name__}: {error}")
        else:
            report.fine(kind, f"{entry.name} ({entry.value})")
            works = True
        if entry.group == "agentrm.adapters":
            adapters[entry.name] = works
    return adapters


def _missing_framework(entry: EntryPoint, error: Exception) -> str | None:
    """The framework whose absence explains the error of one of our own adapters."""
    framework = FRAMEWORKS.get(entry.name) if entry.group == "agentrm.adapters" else None
    if framework is None or not isinstance(error, ImportError):
        return None
    absent = [package for package in framework.packages if _version(package) is None]
    return absent[0] if absent else None


def _frameworks(report: _Report, adapters: dict[str, bool]) -> None:
    report.heading("Frameworks")
    for name, framework in FRAMEWORKS.items():
        versions = {package: _version(package) for package in framework.packages}
        if versions[framework.packages[0]] is None:
            get = f"pip install 'agentrm[{name}]'" if name in adapters else "and no adapter yet"
            report.fine(name, f"not installed ({get})")
            continue
        report.fine(name, ", ".join(f"{package} {found}" for package, found in versions.items() if found))
        if not adapters.get(name):
            lack = "no working adapter for it" if name in adapters else "no adapter yet"
            report.fine("", f"{lack}; lease by hand: with rm.lease(...) as lease:")
            continue
        for line in framework.lines:
            report.fine("", line)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _environments(report: _Report, home: Path, remove: bool) -> None:
    if home.exists() and not home.is_dir():
        raise ConfigError("--environments (or environments.home)", str(home), "a folder, or one not there yet")
    left = leftovers(home)
    report.heading(f"Tool environments in {home}")
    if not left:
        report.fine("", "nothing is left of dead owners")
        return
    problems = clean(home)[1] if remove else {}
    for one in left:
        place, owner = one.entry.place, one.entry.owner
        whose = "left by its owner" if one.entry.abandoned else f"process {owner.pid} is dead"
        what = f"{place.id}: {place.provider}, program {one.entry.program!r}, {whose}; "
        what += f"{one.processes} processes, {one.disk_bytes / 1e6:.1f} MB"
        if place.id in problems:
            report.problem(place.kind, f"{what}. Not removed: {problems[place.id]}")
        elif remove:
            report.fine(place.kind, f"{what}. Removed")
        else:
            report.problem(place.kind, f"{what}. Remove it: agentrm doctor --clean --environments {home}")


def _configuration(report: _Report, path: str) -> Config | None:
    report.heading(f"Configuration {path}")
    try:
        config = load(path)
    except (ConfigError, OSError) as error:
        report.problem("", str(error))
        return None
    for setting in config.explain():
        if setting.value not in (None, ()):
            print(f"  {setting.key} = {setting.value}{'  (default)' if setting.is_default else ''}")
    return config
