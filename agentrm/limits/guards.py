"""Guards against agents that run away: circles, swarms of helpers, endless steps. For any framework, or by hand.

One `Guards` object watches one task, from its root agent down:

    guards = rm.guard(agent="planner", repeat=5, depth=3, live=6, total=20, polling=("status",))

    with guards:                              # the tools of agents behind adapters are watched
        agent.invoke(...)

    guards.before(call)                       # raises LoopDetected
    warning = guards.after(call, result)      # text for the agent, or None
    with guards.child("researcher"):          # raises SpawnRefused
        ...
    for step in guards.steps(20, finalise=True):
        ...
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentrm.errors import ConfigError
from agentrm.identity import current_identity, identity
from agentrm.limits.errors import LoopDetected, SpawnRefused
from agentrm.limits.lineage import Kin, _kin
from agentrm.limits.loops import Call, Circle, LoopWatch
from agentrm.limits.steps import Steps
from agentrm.restoring import restore

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Call", "GuardEvent", "Guards", "current_guards"]

log = logging.getLogger("agentrm")
KEPT_EVENTS = 1000

_InForce = tuple["Guards", "_InForce | None"]
"""Those of the innermost block, and what was in force outside of it."""
_guards: ContextVar[_InForce | None] = ContextVar("agentrm_guards", default=None)


def current_guards() -> Guards | None:
    """Those of the `with` block that runs here, None outside of any."""
    found = _guards.get()
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """`kind`: warning, loop, spawn_refused or steps. `parent`: who started the agent, None for the root: it is the
    one to be told. `text` says what happened."""

    kind: str
    agent: str
    parent: str | None
    text: str


class Guards:
    """See the module. Safe from any thread. Every limit that is None does not exist.

    `with guards:` puts them in force for the tools that adapters run inside, in its tasks and threads too; a block
    within another one replaces it.

    `repeat`: after so many rounds of a circle (2 or more) the agent is warned, and its next step on it refused.
    `polling`: names of tools, or patterns, that may be called for ever with the same result.
    `depth`: how deep agents may be nested below the root (1: its children start none). `live`: how many may run at
    once, `total`: how many may ever be started, both without the root. `on_event(event)` is called for each
    GuardEvent. """

    def __init__(
        self,
        rm: ResourceManager,
        *,
        agent: str | None = None,
        repeat: int | None = 5,
        polling: Sequence[str] = (),
        depth: int | None = None,
        live: int | None = None,
        total: int | None = None,
        on_event: Callable[[GuardEvent], object] | None = None,
    ) -> None:
        for key, value, least in (("repeat", repeat, 2), ("depth", depth, 0), ("live", live, 0), ("total", total, 0)):
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(f"guard.{key}", value, f"a whole number of at least {least}")
        self._rm, self._on_event = rm, on_event
        self._watch = None if repeat is None else LoopWatch(repeat)
        self._polling = tuple(polling)
        self._limits = {"depth": depth, "live": live, "total": total}
        self._lock = threading.RLock()  # re-entrant: a child's block may be left by the collector
        self._events: deque[GuardEvent] = deque(maxlen=KEPT_EVENTS)
        self.root = Kin(agent or current_identity().agent or "default", None)
        self.live = self.total = 0
        """Agents below the root that run now, and that were ever started."""

    def __enter__(self) -> Guards:
        _guards.set((self, _guards.get()))
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        found = _guards.get()
        if found is not None and found[0] is self:  # else left in another context than it was entered in
            _guards.set(found[1])

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """What happened, oldest first (the last 1000)."""
        return tuple(self._events)

    # --- circles ---

    def before(self, call: Call) -> None:
        """To be called before each tool call, hand-off or message. Raises LoopDetected if its agent was found going
        round in a circle, was warned, and is about to go on with it."""
        if self._watch is None or self._is_polling(call):
            return
        with self._lock:
            circle = self._watch.again(call)
        if circle is not None:
            self._tell("loop", call.agent, f"{circle}; its next call of {call.name} was stopped")
            raise LoopDetected(
                f"{circle}: the next call was not made. The results will not change by asking again; do something "
                "else, or mark a tool that is meant to be asked again and again (polling)",
                agent=call.agent, cycle=circle.cycle, repeats=circle.repeats,
            )  # fmt: skip

    def after(self, call: Call, result: Any) -> str | None:
        """To be called with each result. A text to hand to the agent beside it, if it goes round in circles now."""
        if self._watch is None or self._is_polling(call):
            return None
        with self._lock:
            circle: Circle | None = self._watch.made(call, result)
        if circle is None:
            return None
        self._tell("warning", call.agent, str(circle))
        return f"Note: {circle}. Asking again will be refused: use what you have, or do something else."

    def _is_polling(self, call: Call) -> bool:
        return any(fnmatchcase(call.name, pattern) for pattern in self._polling)

    # --- descendants ---

    @contextmanager
    def child(self, agent: str, *, parent: Kin | None = None) -> Iterator[Kin]:
        """Runs a block as an agent started by the one that runs here; nested blocks are its own helpers.

        Calls made inside are the child's (`agentrm.identity`) and count to the budgets of everyone above it.
        `parent` is for where context variables are lost: what the parent's own block gave. Raises SpawnRefused at
        once, it never waits.
        """
        kin = self.enter(agent, parent=parent)
        token = _kin.set(kin)
        try:
            with identity(agent=agent):
                yield kin
        finally:
            if not restore(token) and _kin.get() is kin:  # left in another context: mended if it shows there
                _kin.set(kin.parent)
            self.leave(kin)

    def enter(self, agent: str, *, parent: Kin | None = None) -> Kin:
        """`child` by hand: counts a child that was started elsewhere, until `leave`. Sets no context variable."""
        above = parent or _kin.get()
        kin = Kin(agent, above if above is not None and self._is_mine(above) else self.root)
        with self._lock:
            now = {"depth": kin.depth, "live": self.live + 1, "total": self.total + 1}
            over = next((name for name, limit in self._limits.items() if limit is not None and now[name] > limit), None)
            if over is None:
                self.live += 1
                self.total += 1
                return kin
        raise self._refusal(kin, over)

    def leave(self, kin: Kin) -> None:
        """The child ended."""
        with self._lock:
            self.live -= 1
            if self._watch is not None:
                self._watch.forget(kin.agent)

    def _is_mine(self, kin: Kin) -> bool:
        return any(one is self.root for one in kin.line())

    def _refusal(self, kin: Kin, over: str) -> SpawnRefused:
        asking, allowed = kin.parent.agent if kin.parent is not None else "", self._limits[over] or 0
        why = {
            "depth": f"agents may be nested {allowed} deep",
            "live": f"{allowed} helpers may run at once",
            "total": f"{allowed} helpers may be started in all",
        }[over]
        advice = "wait for one of them to end, or do the work yourself" if over == "live" else "do the work yourself"
        text = f"agent {asking!r} may not start {kin.agent!r}: {why} below {self.root.agent!r}, and they are; {advice}"
        self._tell("spawn_refused", asking, text)
        return SpawnRefused(text, agent=asking, limit=over, allowed=allowed)

    # --- steps ---

    def steps(self, limit: int, *, finalise: bool | Mapping[str, Any] = False) -> Steps:
        """The steps of the agent that runs here, `limit` at most; see `Steps`. `finalise`: one last step without
        tools at the limit; as a mapping (arguments of `rm.lease`: model, input_tokens, ...) only if the budgets
        afford it."""
        agent = (_kin.get() or self.root).agent
        return Steps(
            limit,
            agent=agent,
            finalise=finalise,
            affords=lambda asked: self._rm.affords(**{"agent": agent, **asked}),
            tell=lambda kind, text: self._tell(kind, agent, text),
        )

    def _tell(self, kind: str, agent: str, text: str) -> None:
        kin = _kin.get()
        parent = kin.parent.agent if kin is not None and kin.agent == agent and kin.parent is not None else None
        if parent is None and agent != self.root.agent:
            parent = self.root.agent
        event = GuardEvent(kind, agent, parent, text)
        self._events.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # a user's callback must not stop the guards
                log.exception("on_event failed at %s of agent %r", kind, agent)
