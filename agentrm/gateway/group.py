"""Engines that are interchangeable, with the scheduler of their programs and those that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from agentrm.errors import QueueTimeout
from agentrm.gateway.asked import Asked
from agentrm.gateway.places import Place
from agentrm.gateway.refusals import RETRY_S, Refused
from agentrm.programs import ProgramScheduler, ProgramSettings, Ticket
from agentrm.programs.backends import Usage

if TYPE_CHECKING:
    from agentrm.config import Gateway as GatewayConfig

__all__ = ["Group"]

UNBOUNDED = 1 << 50
"""The capacity of an engine that does not say what it holds: nobody is paused for its sake."""


class Group:
    """`paused(program, place)` and `forgotten(program)` are called for what the scheduler decided besides."""

    def __init__(
        self,
        patterns: tuple[str, ...],
        places: Iterable[Place],
        config: GatewayConfig,
        weights: Mapping[str, float],
        loop: asyncio.AbstractEventLoop,
        paused: Callable[[str, str], object],
        forgotten: Callable[[str], object],
    ) -> None:
        self.patterns = patterns
        self.places = {place.name: place for place in places}
        self.scheduler = ProgramScheduler(
            ProgramSettings(max_waiting=config.max_queued, idle_ttl_s=config.idle_s, weights=weights)
        )
        self._queue_s, self._down_s, self._retry_s = config.queue_s, config.down_s, max(RETRY_S, config.poll_s)
        self._loop, self._now = loop, loop.time
        self._on_paused, self._on_forgotten = paused, forgotten
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        """Runs while no engine is up."""
        self._given_up = False
        for place in self.places.values():
            self.changed(place)

    def changed(self, place: Place) -> None:
        """Tells the scheduler how the engine is now."""
        now = self._now()
        self.scheduler.set_backend(
            place.name, place.capacity or UNBOUNDED, now, prefill_tokens_per_s=place.prefill_rate,
            slots=place.config.lanes, block_tokens=place.block,
        )  # fmt: skip
        if place.up != self.scheduler.backends[place.name].up:
            (self.scheduler.backend_up if place.up else self.scheduler.backend_down)(place.name, now)
        if any(one.up for one in self.places.values()):
            self._given_up = False
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        elif self._giving_up is None:
            self._giving_up = self._loop.call_later(self._down_s, self._give_up)
        self._carry_out()

    def _give_up(self) -> None:
        self._given_up = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._nobody())

    def _nobody(self) -> Refused:
        text = (
            f"none of the engines of this model ({', '.join(self.places)}) has been up for {self._down_s:g} s "
            "(gateway.down_s). Nothing came of the call; retry later"
        )
        return Refused(503, text, "no_engine_up", self._retry_s)

    def request(self, asked: Asked) -> Ticket:
        """Raises QueueFull or RequestTooLarge."""
        ticket = self.scheduler.request(
            asked.program, asked.prompt_tokens, self._now(), tenant=asked.caller.tenant, priority=asked.priority,
            prefix=asked.prefix, max_output_tokens=asked.max_output_tokens,
        )  # fmt: skip
        self._carry_out()
        return ticket

    async def granted(self, ticket: Ticket) -> None:
        """Waits until the ticket is granted. Raises QueueTimeout; Refused if its program ends meanwhile, or if no
        engine is up for too long."""
        if ticket.state == "waiting":
            if self._given_up:
                raise self._nobody()
            future = self._waiting[ticket] = self._loop.create_future()
            expiry = self._loop.call_later(self._queue_s, self._expire, ticket)
            try:
                await future
            finally:
                expiry.cancel()
                self._waiting.pop(ticket, None)
        if ticket.state == "done":
            raise Refused(409, f"the program {ticket.program.id!r} was released", "program_released")

    def _expire(self, ticket: Ticket) -> None:
        future = self._waiting.get(ticket)
        if future is not None and not future.done():
            up = any(place.up for place in self.places.values())
            why = "no engine had room" if up else "no engine is up"
            future.set_exception(
                QueueTimeout(
                    f"the call of agent {ticket.program.id!r} waited {self._queue_s:g} s and {why}. Nothing was sent; "
                    "retry later, or raise gateway.queue_s",
                    agent=ticket.program.id, is_retryable=True, retry_after=RETRY_S,
                )  # fmt: skip
            )

    def progress(self, ticket: Ticket, output_tokens: int) -> None:
        """The answer has begun, or has grown."""
        self.scheduler.progress(ticket, self._now(), output_tokens)
        self._carry_out()

    def again(self, ticket: Ticket) -> None:
        """The ticket's engine broke off before it had answered: it waits again."""
        self.scheduler.requeue(ticket, self._now())
        self._carry_out()

    def leave(self, ticket: Ticket, usage: Usage | None, tool: str | None) -> None:
        """The turn is over; without `usage` it was given up."""
        if usage is None:
            self.scheduler.cancel(ticket, self._now())
        else:
            place = self.places.get(ticket.backend or "")
            most = place.capacity if place is not None and place.capacity else UNBOUNDED  # it can't have held more
            prompt = min(usage.prompt, most)
            output = min(usage.completion, most - prompt)
            self.scheduler.settle(ticket, self._now(), input_tokens=prompt, output_tokens=output, tool=tool)
        self._carry_out()

    def end(self, program: str) -> None:
        """The program is over."""
        for ticket in self.scheduler.end(program, self._now()):
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)
        self._carry_out()

    def close(self) -> None:
        for timer in (self._timer, self._giving_up):
            if timer is not None:
                timer.cancel()

    def _tick(self) -> None:
        self.scheduler.tick(self._now())
        self._carry_out()

    def _carry_out(self) -> None:
        """Does what the scheduler has decided, and looks again when it wants to."""
        changes = self.scheduler.take()
        for ticket in changes.granted:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)
        for paused in changes.paused:
            self._on_paused(paused.program.id, paused.backend)
        for program in changes.ended:
            self._on_forgotten(program.id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.scheduler.next_due(self._now())
        if due is not None:
            self._timer = self._loop.call_at(due, self._tick)
