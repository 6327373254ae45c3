"""Scheduling policies by name: in which order waiting calls run.

The built-in ones are the kernel's own. A custom policy is two pure functions, `place` at submit and `used` at settle:
the kernel orders by level, then by key, and calls neither. It is found by name through the entry-point group
`agentrm.policies`, whose value is a class (or function) that takes no argument and returns the policy.

    class ShortestFirst:
        name = "shortest"

        def place(self, request: Request, state: object) -> Place:
            return Place(level=0, key=request.tokens)

        def used(self, state: object, usage: Usage) -> object:
            return state
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from agentrm.core.kernel import POLICIES
from agentrm.errors import ConfigError
from agentrm.extensions import load_extension

__all__ = ["AUTO", "Auto", "Choice", "Place", "Policy", "Request", "Sight", "Usage", "kernel_policy", "load"]

AUTO = "auto"
GROUP = "agentrm.policies"
MOST_KEY = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a policy sees of a call. `klass`: 0 interactive, 1 subagent, 2 background; `now_s`: the manager's clock."""

    agent: str
    tenant: str
    pool: str
    klass: int
    tokens: int
    now_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call enters the queue: `level` 0 to 2, lower first; inside it `key` 0 to 2**48 - 1, lower first, equal
    keys in order of arrival."""

    level: int
    key: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call used: seconds of its lane and tokens."""

    lane_s: float
    tokens: int


class Policy(Protocol):
    """A custom policy. `state` is whatever `used` last returned for the agent, None at first."""

    name: str

    def place(self, request: Request, state: object) -> Place: ...

    def used(self, state: object, usage: Usage) -> object: ...


@dataclass(frozen=True, slots=True)
class KernelPolicy:
    """One of the kernel's own policies: it needs no Python at submit or settle."""

    name: str


def mlfq() -> KernelPolicy:
    """Three levels with feedback, fair order inside each."""
    return KernelPolicy("mlfq")


def fifo() -> KernelPolicy:
    """By arrival."""
    return KernelPolicy("fifo")


def rr() -> KernelPolicy:
    """Round robin over agents."""
    return KernelPolicy("rr")


def priority() -> KernelPolicy:
    """By class, then arrival."""
    return KernelPolicy("priority")


def drf() -> KernelPolicy:
    """By dominant share alone."""
    return KernelPolicy("drf")


def load(name: str) -> Policy | None:
    """The custom policy of that name; None for one of the kernel's own and for `auto`. (The kernel's own are entry
    points like any other, for lists of what there is; reading the installed packages is spared when one is asked for.)

    Raises ConfigError if it isn't installed, can't be loaded, or lacks `place` and `used`.
    """
    if name in POLICIES or name == AUTO:
        return None
    make = load_extension(GROUP, name, "scheduling.policy")
    try:
        policy = make()
    except Exception as error:  # whatever a plugin's code raises, the configuration is what can't work
        raise ConfigError("scheduling.policy", name, f"a policy that can be made ({error!r})") from error
    if not (callable(getattr(policy, "place", None)) and callable(getattr(policy, "used", None))):
        raise ConfigError("scheduling.policy", name, "a policy with the methods place and used")
    return policy  # type: ignore[no-any-return]


def kernel_policy(name: str) -> str:
    """What the kernel is set to for a policy of that name; `auto` begins with first-in-first-out."""
    return name if name in POLICIES else "fifo" if name == AUTO else "custom"


@dataclass(frozen=True, slots=True)
class Sight:
    """What `auto` looks at: calls that wait, by class, and how many agents they belong to."""

    interactive: int
    others: int
    agents: int
    most_of_one: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy and why it was chosen."""

    policy: str
    why: str


class Auto:
    """Chooses a pool's policy by what it sees.

    Nothing waits: `fifo` (all orders are the same, it is the cheapest). As soon as a call has to wait: `mlfq`. Many
    agents wait with about as much each and nobody interactive did within a minute: `rr`. It changes its mind only when
    three looks in a row agree, except that the first call that waits, and any that waits interactively, counts at once:
    what is queued keeps the place that it was given.
    """

    LOOKS = 3
    INTERACTIVE_LOOKS = 60

    def __init__(self) -> None:
        self.choice = Choice("fifo", "nothing has waited yet")
        self._wanted: deque[str] = deque(maxlen=self.LOOKS)
        self._since_interactive = self.INTERACTIVE_LOOKS

    def look(self, seen: Sight) -> Choice:
        """One look, at most one a second; returns the choice in force."""
        self._since_interactive = 0 if seen.interactive else self._since_interactive + 1
        wanted = self._judge(seen)
        self._wanted.append(wanted.policy)
        settled = len(self._wanted) == self.LOOKS and len(set(self._wanted)) == 1
        if wanted.policy != self.choice.policy and (settled or (seen.interactive and wanted.policy == "mlfq")):
            self.choice = wanted
        elif self.choice.policy == "fifo" and seen.interactive + seen.others:
            self.choice = Choice("mlfq", "calls have begun to wait")
        return self.choice

    def counts_at_once(self, interactive: bool) -> bool:
        """Whether a call that will have to wait is to be looked at now, not at the next look."""
        return self.choice.policy == "fifo" or (interactive and self.choice.policy != "mlfq")

    def _judge(self, seen: Sight) -> Choice:
        waiting = seen.interactive + seen.others
        if not waiting and self._since_interactive >= self.INTERACTIVE_LOOKS:
            return Choice("fifo", "nothing waits")
        if seen.interactive:
            return Choice("mlfq", f"{seen.interactive} of {waiting} waiting calls are interactive")
        if self._since_interactive < self.INTERACTIVE_LOOKS:
            return Choice("mlfq", "interactive calls waited less than a minute ago")
        if seen.agents >= 4 and seen.most_of_one * seen.agents <= 2 * waiting:
            return Choice("rr", f"{seen.agents} agents wait with about {waiting // seen.agents} calls each")
        return Choice("mlfq", f"{waiting} calls of {seen.agents} agents wait")
