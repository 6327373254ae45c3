"""Who makes a call of CrewAI, and how long it may take.

For each of agent, priority, tenant and session the first of these that says something counts: the arguments of
`attach`, `with agentrm.identity(...)`, and for the agent its role. CrewAI tells a tool nowhere who uses it, so the
work that an agent does is noted in a context variable, which CrewAI carries along into its threads and tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agentrm.adapters import CallSpec, Identity, first_answers, read_options
from agentrm.adapters.copies import Gate as PlainGate
from agentrm.identity import NOBODY, current_identity
from agentrm.restoring import restore

if TYPE_CHECKING:
    from agentrm_crewai.once import CallLog

__all__ = ["Gate", "Work", "current_work", "make_gate", "spec_of", "working"]


class Gate(PlainGate):
    """A way into a manager. `root`: the crew that was attached by it. Where that is kept in a session: the `log` of its
    tools' calls, and `keep`, which writes down what is done."""

    __slots__ = ("keep", "log", "root")

    def __init__(self, rm: Any, arguments: Identity, options: Mapping[str, Any], named: Identity = NOBODY) -> None:
        super().__init__(rm, arguments, options, named)
        self.root: Any = None
        self.log: CallLog | None = None
        self.keep: Callable[[], None] | None = None

    def over(self, inner: Gate) -> Gate:
        """What is kept in a session stays so under any later gate."""
        found = super().over(inner)
        if found is not inner:
            found.root, found.log, found.keep = inner.root, self.log or inner.log, self.keep or inner.keep
        return found


class Work:
    """One run of a task, or one kickoff of an agent. `until_ns`: when its `max_execution_time` is over. `task`: the
    place of its calls in the `log`, where there is one. `calls`: how often a tool was called with the same arguments,
    which tells repetitions in one run from the same call in the next run of the task."""

    __slots__ = ("_calls", "_lock", "agent", "log", "task", "until_ns")

    def __init__(self, agent: str, task: str, until_ns: int | None, log: CallLog | None) -> None:
        self.agent, self.task, self.until_ns, self.log = agent, task, until_ns, log
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def nth(self, call: str) -> int:
        with self._lock:
            self._calls[call] = number = self._calls.get(call, 0) + 1
            return number


_work: ContextVar[Work | None] = ContextVar("agentrm_crewai_work", default=None)


def current_work() -> Work | None:
    return _work.get()


@contextmanager
def working(work: Work) -> Iterator[None]:
    token = _work.set(work)
    try:
        yield
    finally:
        restore(token)


def make_gate(rm: Any, where: str, given: dict[str, Any]) -> Gate:
    """From the keyword arguments of `where`: those of an identity, and `pool`, `wait_max`, `idle_s`, `run_s`,
    `guards`."""
    return Gate(rm, *read_options(where, given))


def spec_of(gate: Gate, role: str | None = None, **call: Any) -> CallSpec:
    """The call that begins here; `role` of the agent, where CrewAI says it."""
    work = _work.get()
    role = role or (work.agent if work is not None else None)
    who = first_answers(gate.arguments, current_identity(), Identity(agent=role or None))
    if work is not None and work.until_ns is not None:
        left = max(1e-3, (work.until_ns - gate.rm.clock.now_ns()) / 1e9)
        for name, usual in (("run_s", gate.rm.config.reaper.run_s), ("wait_max", gate.rm.config.waiting.max_s)):
            said = gate.options.get(name, usual)
            call[name] = left if said is None else min(left, said)
    return gate.call(who, **call)
