"""What can go wrong with environments."""

from __future__ import annotations

from agentrm.errors import AgentRMError

__all__ = [
    "EnvironmentEnded",
    "EnvironmentLeft",
    "EnvironmentLost",
    "SetupFailed",
    "SetupTimeout",
    "ToolEnvironmentError",
]


class ToolEnvironmentError(AgentRMError):
    """Base of the errors of environments. `kind` and `program` say whose it was."""

    def __init__(self, message: str, *, kind: str, program: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.program = kind, program


class SetupFailed(ToolEnvironmentError):
    """The command that prepares the environment failed; nothing of it is left. `output` is the end of what it said."""

    def __init__(self, message: str, *, kind: str, output: str, program: str | None = None) -> None:
        super().__init__(message, kind=kind, program=program)
        self.output = output


class SetupTimeout(ToolEnvironmentError, TimeoutError):
    """Making the environment took longer than `setup_s`; what was made of it is removed."""


class EnvironmentLost(ToolEnvironmentError):
    """The program's own environment is not fit for use any more (its container is gone, its server died, its health
    command fails). It was removed; asking again makes a new one."""


class EnvironmentEnded(ToolEnvironmentError):
    """The environment's program ended while somebody still waited for it or used it."""


class EnvironmentLeft(AgentRMError):
    """Some of what was to be removed could not be; it stays in the journal, and `agentrm doctor --clean` tries again.
    `problems`: the error of each, by the environment's id."""

    def __init__(self, problems: dict[str, BaseException]) -> None:
        said = "; ".join(f"{id}: {type(error).__name__}: {error}" for id, error in problems.items())
        super().__init__(f"{len(problems)} environments could not be removed ({said}); run: agentrm doctor --clean")
        self.problems = problems
