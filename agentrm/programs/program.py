"""What is a program, what is one of its turns, and which states can they be in?

A program is an agent's whole piece of work: many calls to a model with tool calls between them, whose context grows
from call to call and whose keys and values an engine would like to keep in its cache meanwhile ("ThunderAgent", arXiv
2602.13692, section 3). One call of it is a turn; a `Ticket` is the right to run one turn, asked for or granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentrm.identity import Priority

if TYPE_CHECKING:
    from agentrm.programs.residency import BackendState

__all__ = ["Changes", "Paused", "Phase", "Prefix", "Program", "Status", "Ticket", "TicketState"]

Phase = Literal["reasoning", "acting"]
"""reasoning: a turn of it waits or runs; acting: a tool runs, or a person thinks."""

Status = Literal["new", "resident", "paused", "ended"]
"""new: has never been let onto a backend; resident: its context counts on `backend`; paused: it counts nowhere, its
next turn waits for room; ended."""

TicketState = Literal["waiting", "granted", "done"]


class Prefix(NamedTuple):
    """The head of a context that several programs share, such as a system prompt with its tool schemas."""

    key: str
    """Any text that is equal exactly when the shared tokens are."""
    tokens: int


class Program:
    """One program as the scheduler sees it. Read it freely; only the scheduler writes.

    Identity and equality are those of the object; `id` is unique among the programs that have not ended.
    """

    __slots__ = (
        "_displace_at", "_dropped_at", "_estimated", "_held_since", "_prefix_on", "_ratio", "_reserved", "_tickets",
        "admitted_at", "arrived", "backend", "context_tokens", "environments", "held_s", "id", "next_use", "pauses",
        "phase", "prefix", "priority", "prompt_tokens", "running", "since", "status", "tenant", "tool", "turns",
    )  # fmt: skip

    def __init__(self, id: str, *, tenant: str, priority: Priority, now: float, prefix: Prefix | None = None) -> None:
        self.id, self.tenant, self.priority, self.prefix = id, tenant, priority, prefix
        self.context_tokens = 0
        """Tokens of its newest finished turn, prompt and answer; exact as soon as one has been settled."""
        self.prompt_tokens = 0
        """Tokens of that turn's prompt alone."""
        self.environments: set[str] = set()
        """Names of the tool environments that it uses; kept by whoever manages them."""
        self.backend: str | None = None
        """Where it is resident, or where it was last: its cache may still be warm there."""
        self.phase: Phase = "reasoning"
        self.status: Status = "new"
        self.turns = 0
        """Turns that were settled."""
        self.running = 0
        """Turns of it that run now."""
        self.pauses = 0
        self.held_s = 0.0
        """Seconds for which turns of it have waited, without the wait that goes on."""
        self.tool: str | None = None
        """The tool that its newest answer asked for, None if none or not known."""
        self.arrived = now
        self.since = now
        """When the phase began."""
        self.admitted_at = now
        """When it last became resident."""
        self.next_use = now
        """When its next turn is expected."""
        self._held_since: float | None = None
        self._tickets: list[Ticket] = []
        self._reserved = 0  # private tokens that count on its backend
        self._prefix_on = False
        self._estimated = 0  # the caller's estimate of the newest prompt, before correction
        self._ratio = 1.0  # exact prompt tokens per estimated one
        self._displace_at = float("inf")
        self._dropped_at = 0  # the backend's count of dropped tokens when it left

    @property
    def waiting(self) -> bool:
        """Whether a turn of it waits."""
        return any(t.state == "waiting" for t in self._tickets)

    def held_share(self, now: float, credit_s: float) -> float:
        """Seconds that it was held back for each second that it was not, `credit_s` of which it is given at its
        start. What is left of the time, its own work and its tools take, so equal shares are equal slowdowns."""
        held = self.held_s if self._held_since is None else self.held_s + now - self._held_since
        return held / (max(0.0, now - self.arrived - held) + credit_s)

    def _mark_held(self, now: float) -> None:
        """Begins or ends the count of seconds in which a turn waits and none runs."""
        if self.waiting and not self.running:
            if self._held_since is None:
                self._held_since = now
        elif self._held_since is not None:
            self.held_s += now - self._held_since
            self._held_since = None

    def __repr__(self) -> str:
        return f"<Program {self.id!r} {self.status} {self.phase} {self.context_tokens} tokens on {self.backend}>"


class Ticket:
    """One turn: asked for (`waiting`), running on `backend` (`granted`), over (`done`). Only the scheduler writes."""

    __slots__ = (
        "_counted", "_kind", "_missing", "_on", "_output", "_started", "arrived", "backend", "expected_tokens",
        "granted_at", "passes", "priority", "program", "seq", "state", "warm_tokens",
    )  # fmt: skip

    def __init__(self, program: Program, seq: int, expected_tokens: int, output: int, now: float) -> None:
        self.program, self.seq, self.arrived = program, seq, now
        self.priority: Priority = program.priority
        self.expected_tokens = expected_tokens
        """The prompt's tokens as corrected by what earlier turns really used."""
        self.state: TicketState = "waiting"
        self.backend: str | None = None
        self.granted_at: float | None = None
        self.warm_tokens = 0
        """How much of the prompt was expected in the backend's cache when it was granted."""
        self.passes = 0
        """How often a turn that came later was granted first."""
        self._on: BackendState | None = None
        self._output = output
        self._missing = 0
        self._started = False
        self._counted = 0  # growth beyond the program's context that is reserved for this turn
        self._kind = 0

    @property
    def waited_s(self) -> float | None:
        """Seconds from the request to the grant; None while it waits."""
        return None if self.granted_at is None else self.granted_at - self.arrived

    def __repr__(self) -> str:
        return f"<Ticket {self.seq} of {self.program.id!r} {self.state} on {self.backend}>"


class Paused(NamedTuple):
    """A program counts no longer on a backend: swap its cache out, or leave it to the engine to overwrite it."""

    program: Program
    backend: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What one or more operations brought about besides their own result, in order."""

    granted: tuple[Ticket, ...] = ()
    """Turns that waited and may run now, on `ticket.backend`."""
    paused: tuple[Paused, ...] = ()
    ended: tuple[Program, ...] = ()
    """Programs that were forgotten because nothing was heard of them: release what they hold elsewhere."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.paused or self.ended)
