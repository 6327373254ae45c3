"""A fleet of programs in front of engines, in simulated time: which router gets how many steps done, and who pays for
it.

A closed loop: so many programs at once, a new one for each that ends, or (a rollout) batches, the next when one is
done. Each program plays a recorded one: prompts, answers and tool times; the engines are those of `engine.py`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrm.simulation.engine import ENGINE, Engine, EngineParameters, Job
from agentrm.simulation.traces import TracedProgram

__all__ = ["Fleet", "Router", "Run", "Running", "Step", "steps_of"]

SAMPLE_S = 5.0
IMBALANCE = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """One call and the tool that follows it."""

    prompt: int
    output: int
    reusable: int
    tool_s: float
    tool: str | None


def steps_of(program: TracedProgram, most_tool_s: float = 600.0) -> tuple[Step, ...]:
    """The steps of a recorded program; idle times longer than `most_tool_s` are taken as that."""
    steps = []
    for k, call in enumerate(program.calls):
        follower = program.calls[k + 1] if k + 1 < len(program.calls) else None
        idle = min(most_tool_s, max(0.0, follower.at - call.ends)) if follower is not None else 0.0
        before = program.calls[k - 1] if k else None
        reusable = min(before.input_tokens + before.output_tokens, call.input_tokens) if before is not None else 0
        steps.append(Step(max(1, call.input_tokens), max(1, call.output_tokens), reusable, idle, call.tool))
    return tuple(steps)


@dataclass(slots=True, eq=False)
class Running:
    """A program of the fleet."""

    key: int
    steps: tuple[Step, ...]
    began: float
    at: int = 0
    """Which step it is at."""
    engine: int | None = None
    asked: float = 0.0
    held_s: float = 0.0
    """Seconds for which its calls were held back by the router."""
    longest_hold_s: float = 0.0
    ended: float | None = None
    tool_ends: float = 0.0

    @property
    def step(self) -> Step:
        return self.steps[self.at]

    @property
    def context(self) -> int:
        """Tokens after its newest finished call."""
        return self.steps[self.at - 1].prompt + self.steps[self.at - 1].output if self.at else 0


class Router(Protocol):
    """Decides when a call goes to which engine. `started` collects (program, engine)."""

    started: list[tuple[Running, int]]

    def request(self, program: Running, now: float) -> None:
        """The program's next call is ready."""

    def settled(self, program: Running, now: float) -> None:
        """Its call is complete; `program.at` is the next one."""

    def ended(self, program: Running, now: float) -> None:
        """It is over."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def next_tick(self, now: float) -> float:
        """When `tick` is wanted; inf: never."""

    def live(self) -> list[int]:
        """Tokens of the programs that count on each engine."""


@dataclass(slots=True)
class Run:
    """What was seen from `warm_up_s` on."""

    seconds: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    programs: list[Running] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)
    alone_s: dict[int, float] = field(default_factory=dict)


class Fleet:
    """One simulation."""

    def __init__(
        self,
        programs: Sequence[tuple[Step, ...]],
        engines: int,
        kv_tokens: int,
        seed: int,
        parameters: EngineParameters = ENGINE,
        shared_tokens: int = 0,
    ) -> None:
        self.engines = [Engine(parameters, kv_tokens, shared_tokens) for _ in range(engines)]
        self.kv_tokens, self.parameters, self.shared_tokens = kv_tokens, parameters, shared_tokens
        self._programs = programs
        self._draw = random.Random(seed)
        self._left: list[int] = []
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, int, str, Any]] = []
        self._order = itertools.count()
        self._versions = [0] * engines
        self._alive: dict[int, Running] = {}

    def _fresh(self, now: float) -> Running:
        if not self._left:
            self._left = list(range(len(self._programs)))
            self._draw.shuffle(self._left)
        steps = self._programs[self._left.pop()]
        return Running(next(self._numbers), steps, now)

    def alone_s(self, steps: tuple[Step, ...]) -> float:
        """Seconds that the program takes by itself on an empty engine that keeps its cache."""
        p, total = self.parameters, 0.0
        for step in steps:
            total += (step.prompt - step.reusable) / p.prefill_tokens_per_s
            total += step.output * (p.fixed_s + p.per_sequence_s + p.per_token_s * step.prompt) + step.tool_s
        return total

    def run(
        self, router: Router, admit: int, *, until_s: float, warm_up_s: float = 0.0, batches: int | None = None
    ) -> Run:
        """Plays `admit` programs at once until `until_s`; with `batches`, so many batches of `admit` programs
        instead."""
        found = Run()
        now, left, batch = 0.0, admit, 1
        for _ in range(admit):
            # they don't begin in step: a new program's sandbox takes its time
            self._push(self._draw.random() * 10.0, "fresh", None)
        self._push(SAMPLE_S, "sample", None)
        ticking = math.inf
        while self._events:
            now, _, version, kind, what = heapq.heappop(self._events)
            if now > until_s:
                now = until_s
                break
            if kind == "engine":
                if self._versions[what] != version:
                    continue
                for job in self.engines[what].advance(now):
                    self._complete(job, router, now, found, warm_up_s)
                self._schedule(what)
            elif kind == "fresh":
                program = self._fresh(now)
                self._alive[program.key] = program
                found.programs.append(program)
                self._ask(program, router, now)
            elif kind == "request":
                self._ask(what, router, now)
            elif kind == "sample":
                if now >= warm_up_s:
                    found.samples.append(router.live())
                self._push(now + SAMPLE_S, "sample", None)
            elif kind == "end":
                program = what
                program.ended = now
                router.ended(program, now)
                if program.engine is not None:
                    self.engines[program.engine].forget(program.key)
                del self._alive[program.key]
                if batches is None:
                    self._push(now, "fresh", None)
                else:
                    left -= 1
                    if not left:
                        if batch == batches:
                            break
                        batch, left = batch + 1, admit
                        for _ in range(admit):
                            self._push(now + self._draw.random() * 10.0, "fresh", None)
            elif kind == "tick":
                if now != ticking:  # an earlier one was wanted meanwhile
                    continue
                ticking = math.inf
                router.tick(now)
            self._send(router, now, found, warm_up_s)
            due = router.next_tick(now)
            if due < ticking:
                ticking = due
                self._push(due, "tick", None)
        found.seconds = now - warm_up_s
        found.alone_s = {p.key: self.alone_s(p.steps) for p in found.programs if p.ended is not None}
        for program in self._alive.values():  # who is still held counts with what he has waited
            if program.asked >= 0:
                program.held_s += now - program.asked
                program.longest_hold_s = max(program.longest_hold_s, now - program.asked)
        return found

    def _push(self, at: float, kind: str, what: Any, version: int = 0) -> None:
        heapq.heappush(self._events, (at, next(self._order), version, kind, what))

    def _schedule(self, engine: int) -> None:
        self._versions[engine] += 1
        at = self.engines[engine].next_event()
        if at < math.inf:
            self._push(at, "engine", engine, self._versions[engine])

    def _ask(self, program: Running, router: Router, now: float) -> None:
        program.asked = now
        router.request(program, now)

    def _send(self, router: Router, now: float, found: Run, warm_up_s: float) -> None:
        touched = set()
        while router.started:
            begun = list(router.started)
            router.started.clear()
            for program, number in begun:
                held = now - program.asked
                program.held_s += held
                program.longest_hold_s = max(program.longest_hold_s, held)
                program.asked = -1.0
                engine = self.engines[number]
                if number not in touched:
                    touched.add(number)
                    for job in engine.advance(now):  # by rounding, complete just before its own event
                        self._complete(job, router, now, found, warm_up_s)
                if program.engine is not None and program.engine != number:
                    self.engines[program.engine].forget(program.key)
                program.engine = number
                step = program.step
                engine.submit(Job(program.key, step.prompt, step.output, step.reusable))
        for number in touched:
            self._schedule(number)

    def _complete(self, job: Job, router: Router, now: float, found: Run, warm_up_s: float) -> None:
        program = self._alive[job.key]
        if now >= warm_up_s:
            found.steps += 1
            found.prompt_tokens += job.prompt
            found.hit_tokens += job.hit
            found.recomputed_tokens += max(0, job.reusable - job.hit)
        step = program.step
        program.at += 1
        program.tool_ends = now + step.tool_s
        known = self.engines[program.engine or 0].next_use
        if known is not None:
            known[job.key] = program.tool_ends
        if program.at == len(program.steps):
            self._push(now, "end", program)
        else:
            router.settled(program, now)
            self._push(now + step.tool_s, "request", program)
