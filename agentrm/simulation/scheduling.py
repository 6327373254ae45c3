"""Discrete-event simulation of the scheduler: recorded or generated turns through the real kernel.

What decides is the kernel that runs in production, driven at simulated times; there is no second implementation. The
simulator adds what the world adds: calls that take their service time, calls that hang, and a reaper.

Healthy calls are taken to stream: their first chunk comes after `FIRST_CHUNK_S`, then one each `CHUNK_S`; a hung call
shows nothing. That is what the progress-based reaper lives on (`agentrm-whole` shows it without).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrm.core.kernel import Kernel, KernelConfig, Pool
from agentrm.scheduling.policies import Auto, Sight
from agentrm.scheduling.progress import Progress
from agentrm.simulation.workload import CLASSES, Turn

__all__ = ["POLICIES", "Outcome", "Policy", "simulate"]

FIRST_CHUNK_S, CHUNK_S = 0.8, 0.5
SWEEP_S = LOOK_S = 1.0
ZOMBIE_S = 30.0
NS = 1_000_000_000
FAILED, DONE = 1, 0


@dataclass(frozen=True, slots=True)
class Policy:
    """How calls are ordered (`kernel`: a policy of the kernel) and hung ones found.

    `reaper`: none (a hung call ends by itself), paper (looks at 10 and 15 s of holding, kills at 20 s) or progress
    (ours).
    `oracle`: knows service times and serves the shortest remaining first, per class. `auto`: what the manager's `auto`
    would set, which looks once a second.
    """

    name: str
    kernel: str
    reaper: str = "none"
    oracle: bool = False
    auto: bool = False
    streams: bool = True
    boost_s: float = 60.0
    age_s: float = 30.0


POLICIES = {
    p.name: p
    for p in (
        Policy("fifo", "fifo"),
        Policy("rr", "rr"),
        Policy("priority", "priority"),
        Policy("fifo-reaper", "fifo", "paper"),
        Policy("paper", "mlfq", "paper"),
        Policy("agentrm", "mlfq", "progress"),
        Policy("agentrm-auto", "fifo", "progress", auto=True),
        Policy("oracle", "custom", "progress", oracle=True),
        # the parts of ours, one off at a time
        Policy("agentrm-fifo", "fifo", "progress"),
        Policy("agentrm-drf", "drf", "progress"),
        Policy("agentrm-rr", "rr", "progress"),
        Policy("agentrm-priority", "priority", "progress"),
        Policy("agentrm-no-reaper", "mlfq"),
        Policy("agentrm-whole", "mlfq", "progress", streams=False),
        Policy("agentrm-no-boost", "mlfq", "progress", boost_s=float("inf")),
        Policy("agentrm-no-ageing", "mlfq", "progress", age_s=float("inf")),
    )
}


@dataclass(slots=True)
class Outcome:
    """What became of one turn. Times in seconds from the start; `held_s`: lane time of attempts that hung."""

    turn: Turn
    waited_s: float = 0.0
    ended: float = 0.0
    answered: bool = False
    hung_attempts: int = 0
    held_s: float = 0.0
    recovered: bool = False
    zombie: bool = False
    falsely_reaped: bool = False

    @property
    def latency_s(self) -> float:
        return self.ended - self.turn.arrival


@dataclass(slots=True)
class _Call:
    """One attempt of a turn in the kernel."""

    outcome: Outcome
    attempt: int
    submitted: float
    handle: int = 0
    granted: float = -1.0
    live: bool = False


@dataclass(order=True)
class _Event:
    at: float
    order: int
    run: Callable[[], None] = field(compare=False)


class _World:
    """One run."""

    def __init__(self, policy: Policy, lanes: int, turns: Sequence[Turn]) -> None:
        self.policy = policy
        self.now = 0.0
        self._events: list[_Event] = []
        self._order = itertools.count()
        room = max(64, 2 * len(turns) + 2 * lanes)
        self.kernel = Kernel(
            KernelConfig(
                pools=(Pool(lanes=lanes, zombies=lanes, max_queued=room, policy=policy.kernel, token_cost_q8=1),),
                tickets=room,
                agents=max(64, len({(t.agent, t.tenant) for t in turns})),
                tenants=max(8, len({t.tenant for t in turns})),
                boost_s=policy.boost_s,
                age_s=policy.age_s,
                events=0,
            )
        )
        self._scope = self.kernel.scope("default/*", 0)
        self._calls: dict[int, _Call] = {}
        self._progress = Progress()
        self._auto = Auto()
        self._last_arrival = max((t.arrival for t in turns), default=0.0)
        self.outcomes = [Outcome(t) for t in turns]
        for outcome in self.outcomes:
            self.at(outcome.turn.arrival, lambda o=outcome: self.submit(o, 1))  # type: ignore[misc]
        if policy.reaper == "progress":
            self.at(SWEEP_S, self.sweep)
        if policy.auto:
            self.at(LOOK_S, self.look)

    def at(self, when: float, run: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(when, next(self._order), run))

    def run(self) -> None:
        while self._events:
            event = heapq.heappop(self._events)
            self.now = max(self.now, event.at)
            event.run()

    def ns(self) -> int:
        return round(self.now * NS)

    # --- the kernel's side ---

    def submit(self, outcome: Outcome, attempt: int) -> None:
        turn, kernel = outcome.turn, self.kernel
        agent = kernel.agent(turn.agent, kernel.tenant(turn.tenant))
        who = CLASSES.index(turn.klass) << 10 | agent << 16 | self._scope << 40
        if attempt > 1:
            who |= 1 << 12  # an interrupted call goes ahead of those that never ran
        if self.policy.oracle:
            hangs = turn.hang and attempt == 1
            kernel.io.req.key = max(1, round(1000 * (turn.service + (60 if hangs else 0))))
            kernel.io.req.level = 0
            who &= ~(1 << 12)
        interactive = turn.klass == "interactive"
        if self.policy.auto and self._auto.counts_at_once(interactive):
            info = kernel.pool_info(0)
            if info.used >= info.lanes:
                self.choose(Sight(int(interactive), info.waiting + (not interactive), 1, 1))
        call = _Call(outcome, attempt, self.now)
        rc = kernel.submit(who, turn.tokens, self.ns())
        assert rc >= 0, f"the kernel refused a turn ({rc})"
        call.handle = rc >> 1
        self._calls[call.handle] = call
        if rc & 1:
            self.start(call)
        self.started(kernel.granted())

    def started(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.start(self._calls[handle])

    def settle(self, call: _Call, outcome: int) -> None:
        call.live = False
        self._calls.pop(call.handle, None)
        self.kernel.settle(call.handle, outcome | call.outcome.turn.tokens << 2, self.ns())
        self.started(self.kernel.granted())

    def choose(self, seen: Sight) -> None:
        before = self._auto.choice.policy
        choice = self._auto.look(seen).policy
        if choice != before:
            self.kernel.set_policy(0, choice)

    def look(self) -> None:
        waiting = [call.outcome.turn for call in self._calls.values() if call.granted < 0]
        first, agents = sum(turn.klass == "interactive" for turn in waiting), Counter(turn.agent for turn in waiting)
        self.choose(Sight(first, len(waiting) - first, len(agents), max(agents.values(), default=0)))
        if self._calls or self.now < self._last_arrival:
            self.at(self.now + LOOK_S, self.look)

    # --- the world's side ---

    def start(self, call: _Call) -> None:
        turn, outcome = call.outcome.turn, call.outcome
        call.granted, call.live = self.now, True
        if call.attempt == 1:
            outcome.waited_s = self.now - turn.arrival
        hangs = turn.hang if call.attempt == 1 else turn.hang and not turn.retry_ok
        if not hangs:
            first = min(FIRST_CHUNK_S, turn.service)
            self.at(self.now + first, lambda: self._progress.began(round(first * NS), 0))
            if turn.service >= first + CHUNK_S:
                self.at(self.now + first + CHUNK_S, lambda: self._progress.went_on(round(CHUNK_S * NS)))
            self.at(self.now + turn.service, lambda: self.finish(call, True))
            return
        outcome.hung_attempts += 1
        if self.policy.reaper == "none":
            self.at(self.now + turn.hang_s, lambda: self.finish(call, False))
        elif self.policy.reaper == "paper":
            self.paper_reaper(call)

    def finish(self, call: _Call, answered: bool) -> None:
        if not call.live:
            return
        outcome = call.outcome
        if not answered:
            outcome.held_s += self.now - call.granted
            outcome.zombie = self.now - call.granted > ZOMBIE_S
        else:
            outcome.recovered = outcome.recovered or outcome.hung_attempts > 0
            if not self.policy.streams:
                self._progress.ended(round((self.now - call.granted) * NS), 0)
        outcome.answered, outcome.ended = answered, self.now
        self.settle(call, DONE if answered else FAILED)

    def paper_reaper(self, call: _Call) -> None:
        """A retry in place at 10 s and, if that failed, at 15 s of holding (each succeeds in 55 of 100, both together
        in 80), the end at 20 s. The lane is held throughout: that is what reproduces the tables."""
        turn = call.outcome.turn
        if turn.retry_ok:
            retried = 10.0 if turn.luck < 0.69 else 15.0
            self.at(self.now + retried + turn.service, lambda: self.finish(call, True))
        else:
            self.at(self.now + 20.0, lambda: self.kill(call))

    def kill(self, call: _Call) -> None:
        outcome = call.outcome
        outcome.held_s += self.now - call.granted
        outcome.zombie, outcome.ended = True, self.now
        self.settle(call, FAILED)

    def sweep(self) -> None:
        """Ours: a call that has been silent for longer than healthy calls were is taken off its lane and tried once
        more on a fresh connection, ahead of calls that never ran."""
        soonest = SWEEP_S
        for call in list(self._calls.values()):
            if not call.live:
                continue
            turn, held = call.outcome.turn, self.now - call.granted
            hangs = turn.hang if call.attempt == 1 else turn.hang and not turn.retry_ok
            if self.policy.streams:
                shown = 0.0 if hangs or held < FIRST_CHUNK_S else held - (held - FIRST_CHUNK_S) % CHUNK_S
            else:
                shown = 0.0
            known = self._progress
            limit = known.limit_ns(0, streams=self.policy.streams, begun=shown > 0, again=call.attempt > 1) / NS
            if held - shown <= limit:
                soonest = min(soonest, limit - held + shown + 0.001)
                continue
            call.outcome.falsely_reaped = call.outcome.falsely_reaped or not hangs
            call.outcome.held_s += held
            self.settle(call, FAILED)
            if call.attempt == 1:
                self.submit(call.outcome, 2)
            else:
                call.outcome.zombie, call.outcome.ended = True, self.now
        if self._events or any(c.live for c in self._calls.values()):
            self.at(self.now + soonest, self.sweep)


def simulate(policy: Policy, lanes: int, turns: Sequence[Turn]) -> list[Outcome]:
    """Runs all turns through one policy to the end."""
    world = _World(policy, lanes, turns)
    world.run()
    return world.outcomes
