"""Who may go to which engine, and when? Between the requests and the scheduler of programs, the lanes and the backends.

A request holds a `Turn` from its admission to its end. `leave` gives back whatever it has, exactly once, however it
ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrm.gateway.asked import Asked, program_of
from agentrm.gateway.group import Group
from agentrm.gateway.metrics import Family, Labels, Tally
from agentrm.gateway.places import Place, Places, serves
from agentrm.gateway.refusals import RETRY_S, Refused
from agentrm.identity import PRIORITIES
from agentrm.programs import Ticket
from agentrm.programs.backends import Usage

if TYPE_CHECKING:
    from agentrm.config import Gateway as GatewayConfig
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Desk", "Seat", "Turn"]


class Turn:
    """One request between admission and end, and what is known of its answer so far."""

    __slots__ = (
        "arrived", "asked", "events", "expelled", "failed_at", "failures", "first_s", "group", "over", "sent", "task",
        "ticket", "tool", "usage",
    )  # fmt: skip

    def __init__(self, asked: Asked, group: Group, ticket: Ticket, arrived: float) -> None:
        self.asked, self.group, self.ticket, self.arrived = asked, group, ticket, arrived
        self.task = asyncio.current_task()
        self.usage: Usage | None = None
        self.sent = arrived
        """When it was sent to its engine."""
        self.first_s: float | None = None
        """Seconds from then to the first event of its stream."""
        self.events = 0
        """Events of its stream so far."""
        self.tool: str | None = None
        self.failures = 0
        """How often an engine broke off before it had answered anything."""
        self.failed_at: str | None = None
        """The engine that did so last."""
        self.expelled: Refused | None = None
        self.over = False

    def expel(self, why: Refused) -> None:
        """Ends it from outside; its client is told why."""
        if not self.over and self.task is not None:
            self.expelled = why
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class Seat:
    """A place on an engine: its lane, and the fields that the engine is to get."""

    place: Place
    lease: Lease
    fields: dict[str, Any]


class Desk:
    """See the module. Lives in one event loop."""

    def __init__(self, config: GatewayConfig, rm: ResourceManager, places: Places, tally: Tally) -> None:
        self._config, self._rm, self._places, self._tally = config, rm, places, tally
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self.groups = [
            Group(patterns, members, config, dict(self._weights()), loop, self._paused, self._forget)
            for patterns, members in places.groups().items()
        ]
        self._of_place = {place.name: group for group in self.groups for place in group.places.values()}
        self.open: set[Turn] = set()
        self.closing = False
        self.empty = asyncio.Event()
        self.empty.set()
        self._work: set[asyncio.Task[Any]] = set()
        self._moving: dict[str, asyncio.Task[Any]] = {}
        """Programs whose state is being written out."""
        self._asking: asyncio.Task[Any] | None = None
        """The look that follows when an engine was taken to be dead."""
        self._where: dict[str, str] = {}
        """On which engine each named program ran last."""
        self._numbers = itertools.count()

    def _weights(self) -> list[tuple[str, float]]:
        tenants = {key.tenant for key in self._config.keys.values()} | set(self._rm.config.tenants)
        return [(name, self._rm.config.weight_of(name)) for name in tenants]

    def number(self) -> int:
        """Tells requests apart that name no program."""
        return next(self._numbers)

    def changed(self, place: Place) -> None:
        """An engine came up, went down, or holds another number of tokens."""
        self._of_place[place.name].changed(place)

    # --- a request's way ---

    def admit(self, asked: Asked) -> Turn:
        """Asks for a turn of the request's program. Raises Refused or an AdmissionError; then nothing is held."""
        if self.closing:
            raise Refused(503, "the gateway is shutting down; try another one", "closing", RETRY_S)
        group = next((g for g in self.groups if serves(g.patterns, asked.model)), None)
        if group is None:
            text = f"no engine serves the model {asked.model!r}; GET /v1/models lists those that are served"
            raise Refused(404, text, "model_not_found")
        turn = Turn(asked, group, group.request(asked), self._now())
        self.open.add(turn)
        self.empty.clear()
        return turn

    async def granted(self, turn: Turn) -> None:
        """Waits for the turn. Raises QueueTimeout."""
        await turn.group.granted(turn.ticket)
        if not turn.failures:
            self._tally.queued.add(self._now() - turn.arrived)

    @asynccontextmanager
    async def seat(self, turn: Turn) -> AsyncIterator[Seat]:
        """A lane of the engine that was granted, with the program's state in place."""
        asked, place = turn.asked, turn.group.places[turn.ticket.backend or ""]
        lease = self._rm.lease(
            pool=place.name, model=asked.model, agent=asked.agent, tenant=asked.caller.tenant, priority=asked.priority,
            session=asked.program if asked.named else None, input_tokens=turn.ticket.expected_tokens,
            max_output_tokens=asked.max_output_tokens, wait_max=self._config.queue_s, streams=asked.stream, parent=None,
        )  # fmt: skip
        async with lease:
            await self._bring(asked, place)
            fields = await place.backend.open(asked.program, PRIORITIES.index(asked.priority))
            turn.sent = self._now()
            try:
                yield Seat(place, lease, dict(fields))
            finally:
                place.backend.close(asked.program, fields)
                if (used := turn.usage) is not None:
                    lease.settle(used.prompt, used.completion, cached_tokens=used.cached or 0)
                    if (
                        used.cached is not None
                        and turn.first_s is not None
                        and place.learn_prefill(used.prompt - used.cached, turn.first_s)
                    ):
                        turn.group.changed(place)

    def again(self, turn: Turn, place: Place, *, dead: bool) -> None:
        """The engine broke off before it had answered anything: the turn waits again. `dead`: it is not used until it
        says that it is well."""
        if dead:
            self._places.down(place)
            if self._asking is None or self._asking.done():
                self._asking = self._start(self._places.look())
        turn.group.again(turn.ticket)

    def leave(self, turn: Turn) -> None:
        """The request is over. Again it does nothing."""
        if turn.over:
            return
        turn.over = True
        self.open.discard(turn)
        if not self.open:
            self.empty.set()
        turn.group.leave(turn.ticket, turn.usage, turn.tool)
        program = turn.asked.program
        if not turn.asked.named:
            self._end(program)
        elif program not in turn.group.scheduler.programs:  # its first turn came to nothing, or it was released
            self._forget(program)

    # --- programs ---

    def release(self, tenant: str, name: str) -> bool:
        """Ends a program of the tenant and what it still has running. Whether it was known."""
        program = program_of(tenant, name)
        known = any(program in group.scheduler.programs for group in self.groups)
        gone = Refused(409, f"the program {name!r} was released", "program_released")
        for turn in [t for t in self.open if t.asked.program == program]:
            turn.expel(gone)
        self._end(program)
        return known

    def _end(self, program: str) -> None:
        for group in self.groups:
            group.end(program)
        self._forget(program)

    def _paused(self, program: str, name: str) -> None:
        place = self._places.all[name]
        if place.up and place.backend.capabilities.swap and program not in self._moving:
            self._moving[program] = task = self._start(place.backend.pause(program))
            task.add_done_callback(lambda _: self._moving.pop(program, None))

    def _forget(self, program: str) -> None:
        self._where.pop(program, None)
        for place in self._places.all.values():
            if place.backend.capabilities.swap:
                self._start(place.backend.forget(program))

    async def _bring(self, asked: Asked, place: Place) -> None:
        """Writes the program's state out where it ran last, if it can be read here."""
        moving = self._moving.get(asked.program)
        if moving is not None:
            await asyncio.wait({moving})
        last = self._places.all.get(self._where.get(asked.program, ""))
        if asked.named:
            self._where[asked.program] = place.name
        if last is not None and last is not place and last.up and place.config.swap_dir == last.config.swap_dir:
            await last.backend.pause(asked.program)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    # --- end ---

    async def drain(self, limit_s: float) -> None:
        """Takes nothing new, gives what is there `limit_s` seconds to end, then ends it."""
        self.closing = True
        try:
            await asyncio.wait_for(self.empty.wait(), limit_s)
        except asyncio.TimeoutError:
            for turn in list(self.open):
                turn.expel(Refused(503, "the gateway was shut down before the answer was complete", "closing", RETRY_S))
            await self.empty.wait()

    async def close(self) -> None:
        """Ends what is going on beside the requests."""
        for group in self.groups:
            group.close()
        if self._work:
            await asyncio.wait(self._work)

    def gauges(self) -> list[Family]:
        """How things stand, for the metrics."""
        stand = [group.scheduler.statistics() for group in self.groups]
        counts: dict[Labels, float] = {
            (("status", "resident"),): float(sum(one.resident for one in stand)),
            (("status", "paused"),): float(sum(one.paused for one in stand)),
        }
        by_place: dict[str, dict[Labels, float]] = {}
        for group, one in zip(self.groups, stand, strict=True):
            for name, place in group.places.items():
                said, label = place.signals, (("backend", name),)
                values = {
                    "up": float(place.up), "context_tokens": float(one.used_tokens.get(name, 0)),
                    "capacity_tokens": place.capacity, "engine_running": said.running, "engine_waiting": said.waiting,
                    "engine_kv_used": said.kv_used, "engine_hit_tokens": said.hit_tokens,
                    "engine_query_tokens": said.query_tokens, "engine_preempted": said.preempted,
                }  # fmt: skip
                for metric, value in values.items():
                    if value is not None:  # what an engine does not say is not shown as 0
                        by_place.setdefault(metric, {})[label] = float(value)
        return [
            Family("agentrm_gateway_waiting", "gauge", {(): float(sum(one.waiting for one in stand))}),
            Family("agentrm_gateway_running", "gauge", {(): float(sum(one.running for one in stand))}),
            Family("agentrm_gateway_open_requests", "gauge", {(): float(len(self.open))}),
            Family("agentrm_gateway_programs", "gauge", counts),
            *(Family(f"agentrm_gateway_backend_{name}", "gauge", samples) for name, samples in by_place.items()),
        ]
