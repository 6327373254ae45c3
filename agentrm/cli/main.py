"""Which subcommand runs, and with which exit status.

A subcommand is a module with `add_parser(commands)`, which adds its parser under its own name, and
`run(arguments) -> int`. Only the one that was asked for is imported, so a command whose extra is not
installed, or that is broken, never stops the others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import NamedTuple

from agentrm.cli.usage import UsageError
from agentrm.errors import AgentRMError, ConfigError


class Command(NamedTuple):
    module: str
    about: str
    extra: str | None = None
    """The extra of the distribution that brings what the command imports."""


COMMANDS = {
    "demo": Command("agentrm.cli.demo", "real agents on a local model, without and with agentrm", "demo"),
    "models": Command("agentrm.cli.models", "list, fetch and check the local models", "local"),
    "simulate": Command("agentrm.cli.simulate", "what each scheduling policy would have done with a workload"),
    "evaluate": Command("agentrm.cli.evaluate", "what compaction keeps of conversations and trajectories", "semantic"),
    "sessions": Command("agentrm.cli.sessions", "list, show, search, hibernate, restore, export and verify sessions"),
    "serve": Command("agentrm.cli.serve", "an OpenAI-compatible gateway in front of any number of engines", "gateway"),
    "doctor": Command("agentrm.cli.doctor", "what is installed, what works, and the lines to write"),
}

INTERRUPTED = 130
"""The exit status that shells give to a command ended by Ctrl-C."""

UNHEARD = 141
"""The exit status that shells give to a command whose output nobody reads any more."""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); return its exit status: 0, 1 for failure, or 2 for an
    argument or a setting that cannot be.

    What argparse refuses leaves with `SystemExit(2)`, `--help` and `--version` with `SystemExit(0)`, as ever.
    """
    line = list(sys.argv[1:] if argv is None else argv)
    asked = line[0] if line else None
    try:
        parser, module = parser_for(asked)
    except ImportError as missing:
        return _lacking(asked or "", f"can't be loaded: {missing}", (missing.name or "").partition(".")[0])
    arguments = parser.parse_args(line)
    assert module is not None, "argparse refuses a line that names no command"
    try:
        return int(module.run(arguments) or 0)
    except AgentRMError as error:
        _say(f"agentrm {asked}: {error}")
        return 2 if isinstance(error, (ConfigError, UsageError)) else 1
    except ModuleNotFoundError as missing:
        if (missing.name or "agentrm").startswith("agentrm"):
            raise  # a fault of ours
        name = (missing.name or "").partition(".")[0]
        return _lacking(asked or "", f"needs {name} for this, which is not installed", name)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough. Without this Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNHEARD
    except OSError as error:  # a file that is not there, a port that is taken
        _say(f"agentrm {asked}: {error}")
        return 1


def _lacking(command: str, what: str, package: str) -> int:
    extra = COMMANDS[command].extra
    wanted = f"'agentrm[{extra}]'" if extra else package
    install = f". Install it: pip install {wanted}" if wanted and not package.startswith("agentrm") else ""
    _say(f"agentrm {command} {what}{install}")
    return 1


def parser_for(asked: str | None) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser that knows the command `asked` in full and the others by name, and that command's module.

    Raises ImportError if the module can't be loaded.
    """
    parser = argparse.ArgumentParser(prog="agentrm", description="The resource manager for LLM agents.")
    parser.add_argument("--version", action="version", version=f"agentrm {version('agentrm')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    module: ModuleType | None = None
    for name, command in COMMANDS.items():
        if name != asked:
            commands.add_parser(name, help=command.about)
            continue
        module = import_module(command.module)
        module.add_parser(commands)
    return parser, module
