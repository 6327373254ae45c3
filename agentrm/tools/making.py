"""How one environment is made: written down, created, set up, its server started."""

from __future__ import annotations

from agentrm.tools.environment import Environment
from agentrm.tools.errors import SetupFailed, SetupTimeout
from agentrm.tools.journal import Journal

__all__ = ["make", "timed_out"]

LAST_WORDS = 2000
"""Characters of a failed set-up's output that its error shows."""


def make(environment: Environment, journal: Journal) -> BaseException | None:
    """Makes and prepares it, blocking this thread. Returns what went wrong; what there is of it then is to be removed.
    The journal knows of it first."""
    settings, place, provider = environment.settings, environment.place, environment.provider
    try:
        journal.write(environment.entry)
        provider.create(place)
        if settings.setup:
            completed = environment.run(settings.setup, settings.setup_s)
            if completed.timed_out:
                return timed_out(environment)
            if completed.returncode != 0:
                output = (completed.stdout + completed.stderr)[-LAST_WORDS:]
                raise SetupFailed(
                    f"the set-up of environments of kind {place.kind!r} failed with exit status "
                    f"{completed.returncode}; nothing of it is left. It said: {output or 'nothing'}",
                    kind=place.kind, output=output,
                )  # fmt: skip
        if settings.server:
            provider.serve(place, settings.server)
    except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait for the environment get it
        return error
    return None


def timed_out(environment: Environment) -> SetupTimeout:
    """The error of one whose making took too long."""
    return SetupTimeout(
        f"making an environment of kind {environment.kind!r} took longer than the {environment.settings.setup_s:g} s "
        "that setup_s allows; what was made is removed. Raise it, or make less",
        kind=environment.kind,
    )
