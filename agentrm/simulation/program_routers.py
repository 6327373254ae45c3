"""The routers that are compared: what each lets onto which engine, and when.

`lru`: everything at once, a program stays on its engine, the engine overwrites the least recently used. `cap`: so many
programs at once, in order of arrival. `fifo-set`: programs run, oldest first, as long as their contexts fit. `ttl`: as
`lru`, but a context is protected for some seconds after its call (in the manner of Continuum, arXiv 2511.02230).
`belady`: as `lru`, but the engine overwrites what is used latest, which it knows. `agentrm`: the scheduler that also
serves live traffic. ThunderAgent's two are in `thunderagent.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from agentrm.programs import Prefix, ProgramScheduler, ProgramSettings, Ticket
from agentrm.simulation.programs import Fleet, Running

__all__ = ["ROUTERS", "AgentRM", "Direct", "FifoSet"]

TTL_S = 10.0


class OnEngines(ABC):
    """Programs by engine and the tokens that they count there."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.started: list[tuple[Running, int]] = []
        self.on: list[dict[int, Running]] = [{} for _ in fleet.engines]

    @abstractmethod
    def request(self, program: Running, now: float) -> None:
        """The program wants its next call."""

    def settled(self, program: Running, now: float) -> None:  # noqa: B027 - not every router looks at it
        pass

    def ended(self, program: Running, now: float) -> None:
        for programs in self.on:
            programs.pop(program.key, None)

    def tick(self, now: float) -> None:  # noqa: B027 - as above
        pass

    def next_tick(self, now: float) -> float:
        return math.inf

    def live(self) -> list[int]:
        return [sum(p.context for p in programs.values()) for programs in self.on]


class Direct(OnEngines):
    """Everything at once, on the engine that had the fewest programs when the program came; `most` programs inside, the
    others wait for one to end."""

    def __init__(self, fleet: Fleet, most: float = math.inf) -> None:
        super().__init__(fleet)
        self.most = most
        self._queue: OrderedDict[int, Running] = OrderedDict()

    def request(self, program: Running, now: float) -> None:
        for number, programs in enumerate(self.on):
            if program.key in programs:
                self.started.append((program, number))
                return
        if sum(map(len, self.on)) >= self.most:
            self._queue[program.key] = program
            return
        number = min(range(len(self.on)), key=lambda n: len(self.on[n]))
        self.on[number][program.key] = program
        self.started.append((program, number))

    def ended(self, program: Running, now: float) -> None:
        super().ended(program, now)
        if self._queue and sum(map(len, self.on)) < self.most:
            self.request(self._queue.popitem(last=False)[1], now)


class TimeToLive(Direct):
    """Contexts are protected for `TTL_S` after a call."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._changes = [e.pinned_until for e in fleet.engines]

    def settled(self, program: Running, now: float) -> None:
        self._changes[program.engine or 0][program.key] = now + TTL_S

    def ended(self, program: Running, now: float) -> None:
        super().ended(program, now)
        self._changes[program.engine or 0].pop(program.key, None)


class Clairvoyant(Direct):
    """The engines know when each idle program's next call comes."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        for engine in fleet.engines:
            engine.next_use = {}


class FifoSet(OnEngines):
    """Only programs whose contexts fit together, the oldest first, each on one engine to its end; when those inside
    outgrow the memory, the youngest stops at its next call until there is room."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._queue: dict[int, Running] = {}

    def _size(self, program: Running) -> int:
        return max(program.context, program.step.prompt if program.at < len(program.steps) else 0)

    def request(self, program: Running, now: float) -> None:
        self._queue[program.key] = program
        self._serve()

    def settled(self, program: Running, now: float) -> None:
        self._serve()

    def ended(self, program: Running, now: float) -> None:
        super().ended(program, now)
        self._serve()

    def _serve(self) -> None:
        for key in sorted(self._queue):  # keys are numbered in order of arrival
            program = self._queue[key]
            numbers = [n for n, programs in enumerate(self.on) if key in programs] or sorted(
                range(len(self.on)), key=lambda n: sum(map(self._size, self.on[n].values()))
            )
            for number in numbers:
                older = sum(self._size(p) for k, p in self.on[number].items() if k != key)
                if older + self._size(program) + program.step.output <= self.fleet.kv_tokens or not self.on[number]:
                    self.on[number][key] = program
                    self.started.append((program, number))
                    del self._queue[key]
                    break
            else:
                if numbers and key in self.on[numbers[0]]:
                    youngest = max(self.on[numbers[0]])
                    if youngest in self._queue:
                        del self.on[numbers[0]][youngest]
                    continue
                return


class AgentRM(OnEngines):
    """`ProgramScheduler`, as it is. It is told what a gateway would know: the size of each prompt, what came of it,
    which tool was called, when a program ends."""

    def __init__(self, fleet: Fleet, settings: ProgramSettings | None = None) -> None:
        super().__init__(fleet)
        self.scheduler = ProgramScheduler(settings or ProgramSettings())
        for number in range(len(fleet.engines)):
            self.scheduler.set_backend(
                str(number), fleet.kv_tokens, 0.0, prefill_tokens_per_s=fleet.parameters.prefill_tokens_per_s
            )
        self._tickets: dict[int, Ticket] = {}
        self._prefix = Prefix("shared", fleet.shared_tokens) if fleet.shared_tokens else None
        self._running: dict[str, Running] = {}

    def request(self, program: Running, now: float) -> None:
        name = str(program.key)
        self._running[name] = program
        ticket = self.scheduler.request(name, program.step.prompt, now, prefix=self._prefix)
        self._tickets[program.key] = ticket
        if ticket.state == "granted":
            self.started.append((program, int(ticket.backend or 0)))
        self._take()

    def settled(self, program: Running, now: float) -> None:
        step = program.steps[program.at - 1]
        self.scheduler.settle(
            self._tickets.pop(program.key), now, input_tokens=step.prompt, output_tokens=step.output, tool=step.tool
        )
        self._take()

    def ended(self, program: Running, now: float) -> None:
        self.scheduler.end(str(program.key), now)
        del self._running[str(program.key)]
        self._tickets.pop(program.key, None)
        self._take()

    def tick(self, now: float) -> None:
        self.scheduler.tick(now)
        self._take()

    def next_tick(self, now: float) -> float:
        due = self.scheduler.next_due(now)
        return math.inf if due is None else due

    def _take(self) -> None:
        for ticket in self.scheduler.take().granted:
            self.started.append((self._running[ticket.program.id], int(ticket.backend or 0)))

    def live(self) -> list[int]:
        return [b.used for b in self.scheduler.backends.values()]


def _thunder(paper: bool) -> Callable[[Fleet], OnEngines]:
    def make(fleet: Fleet) -> OnEngines:
        from agentrm.simulation.thunderagent import ThunderAgent

        return ThunderAgent(fleet, paper=paper)

    return make


ROUTERS: dict[str, Callable[[Fleet], OnEngines]] = {
    "lru": Direct,
    "cap": Direct,
    "fifo-set": FifoSet,
    "thunderagent-paper": _thunder(True),
    "thunderagent-code": _thunder(False),
    "ttl": TimeToLive,
    "agentrm": AgentRM,
    "belady": Clairvoyant,
}
"""By name. `cap` is run with several caps and the best is reported."""
