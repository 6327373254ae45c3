"""How many steps may an agent make, and what becomes of its work when they are used up?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentrm.errors import ConfigError
from agentrm.limits.errors import StepLimit

__all__ = ["Step", "Steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `tools`: whether it may call tools; the one that only finishes the work may not."""

    number: int
    tools: bool
    _kept: list[Any]

    def record(self, *work: Any) -> None:
        """Keeps what the step brought, so that nothing is lost when the limit is reached."""
        self._kept.extend(work)


class Steps:
    """An agent's steps, as a loop to be left with `break` when the work is done:

        for step in guards.steps(20, finalise=True):
            reply = ask(tools=TOOLS if step.tools else ())
            step.record(reply)
            if not reply.tool_calls:
                break

    At the limit: with `finalise` one more step without tools, then the loop ends with `status` "limit"; without it,
    or where that step does not fit into the budgets, StepLimit is raised, with everything recorded in its
    `transcript`. """

    def __init__(
        self,
        limit: int,
        *,
        agent: str,
        finalise: bool | Mapping[str, Any],
        affords: Callable[[Mapping[str, Any]], bool],
        tell: Callable[[str, str], object],
    ) -> None:
        if type(limit) is not int or limit < 1:
            raise ConfigError("steps", limit, "a whole number of at least 1")
        self.limit, self._agent, self._finalise = limit, agent, finalise
        self._affords, self._tell = affords, tell
        self._kept: list[Any] = []
        self.made = 0
        self.status: Literal["running", "limit"] = "running"
        """`limit` once the steps with tools were used up; a loop that was left before stays `running`."""

    @property
    def transcript(self) -> tuple[Any, ...]:
        """What the steps recorded so far."""
        return tuple(self._kept)

    def __iter__(self) -> Iterator[Step]:
        while self.made < self.limit:
            self.made += 1
            yield Step(self.made, True, self._kept)
        self.status = "limit"
        why = self._no_final_step()
        self._tell("steps", f"agent {self._agent!r} made {self.limit} steps, as many as it may")
        if why:
            raise StepLimit(
                f"agent {self._agent!r} made {self.limit} steps, as many as it may, without an end{why}. What it did "
                "is in `transcript`; raise the limit, or let it answer with one last call without tools (finalise)",
                agent=self._agent, steps=self.limit, transcript=self.transcript,
            )  # fmt: skip
        self.made += 1
        yield Step(self.made, False, self._kept)

    def _no_final_step(self) -> str:
        """Why there is none, empty if there is one."""
        if not self._finalise:
            return ", and no last call was asked for"
        if isinstance(self._finalise, Mapping) and not self._affords(self._finalise):
            return ", and its budgets have no room for a last call"
        return ""
