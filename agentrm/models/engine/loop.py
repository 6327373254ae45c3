"""The loop of one device: at each token it decides whose turn it is, makes room, runs the model once and hands out.

Everything below its inbox belongs to its one thread: the store, the works, the seats. Others post what they want and
hear of it by callback.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrm.errors import ForkedError
from agentrm.models.engine.calls import Call, Home, never
from agentrm.models.engine.forward import Forward, Logits, Row
from agentrm.models.engine.packing import Kept, Packing
from agentrm.models.engine.seats import Seats, Turns
from agentrm.models.engine.store import Chain, Store
from agentrm.models.engine.thread import EngineThread
from agentrm.models.engine.works import StepWork, Work
from agentrm.models.errors import EngineClosed
from agentrm.programs.predict import IdleTimes

if TYPE_CHECKING:
    from agentrm.scheduling import Lease

LOOK_S = 0.05
"""How often a call that waits in the queue is asked whether it was cancelled, if nothing else happens."""


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """Of one device. Blocks are of `block_tokens` tokens; `peak_blocks` is the most that were in use at a time. The
    other figures count since the start: tokens fed to the model and forwards that fed them; tokens found in blocks that
    were there already; programs swapped out, in and given up; seats handed on."""

    device: str
    calls: int
    waiting: int
    block_tokens: int
    block_bytes: int
    blocks: int
    used_blocks: int
    cached_blocks: int
    peak_blocks: int
    swapped_bytes: int
    fed_tokens: int
    forwards: int
    cached_tokens: int
    swapped_out: int
    swapped_in: int
    dropped: int
    switches: int


class Loop:
    """See the module. `chunk`: most tokens of prompts in one forward."""

    def __init__(self, forward: Forward, store: Store, turns: Turns, chunk: int) -> None:
        self.forward, self.store = forward, store
        self.seats = Seats(turns, self.seated)
        self.calls: dict[Call, None] = {}
        self.kept: dict[Chain, Kept] = {}
        """Chains of programs between their turns."""
        self._clock, self._idle_times = turns.rm.clock, IdleTimes()
        self._packing = Packing(store, chunk, self.calls, self.kept, self._clock, self._stop)
        self.fed = self.forwards = self._number = 0
        self.closed = False
        self.thread = EngineThread(self)
        self.post, self.ask = self.thread.post, self.thread.ask
        _loops.add(self)

    # --- from any thread ---

    def begin(
        self,
        call: Call,
        tokens: Sequence[int],
        make: Callable[[], Work] | None,
        fail: Callable[[BaseException], object],
    ) -> None:
        """Starts a call: its chain gets the tokens, then `make` makes its work. `fail` hears why it cannot start."""

        def start() -> None:
            self._number += 1
            call.number, call.prompt = self._number, len(tokens)
            idle = self.kept.pop(call.chain, None)
            if idle is not None:
                self._idle_times.learn(str(id(call.chain)), None, self._clock.now_ns() / 1e9 - idle.since)
            if self.closed:
                call.ended, call.error = True, EngineClosed()
                if call.home is not None:
                    call.home.turn_ended()
                fail(call.error)
                return
            try:
                self.store.set_tokens(call.chain, tokens)
                self.store.feed_again(call.chain, 1)
                call.chain.account = self.store.pool.account(call.who.agent, call.who.tenant)
                call.chain.turn = len(tokens)
                call.chain.wish = (len(tokens) + call.limit) * (1 if call.home is None else 2)  # and a next turn
                self.store.traffic.kept += call.chain.fed
                if make is not None:
                    call.work = make()
                self.calls[call] = None
                self.seats.ask(call)
            except BaseException as error:  # noqa: BLE001 - the caller hears of it
                call.error = error
                try:
                    self._end(call)
                finally:
                    fail(error)

        self.post(start)

    def go_on(self, call: Call, tokens: Sequence[int], make: Callable[[], Work]) -> None:
        """A call that looked at logits goes on with a work of its own."""

        def start() -> None:
            self.store.set_tokens(call.chain, tokens)
            self.store.feed_again(call.chain, 1)
            call.before = max(0, len(tokens) - call.prompt)
            work = make()
            if call.ended:
                work.stop(call.error)
            else:
                call.work = work

        self.post(start)

    def step(
        self, call: Call, tokens: Sequence[int], keep: int, look: Callable[[Any], object], give: Callable[[Any], object]
    ) -> None:
        """Computes the logits after a call's last `keep` tokens; `give` gets what `look` makes of them, an error, or
        None if the call was cancelled."""

        def start() -> None:
            if call.ended:
                give(call.error)
                return
            self.store.set_tokens(call.chain, tokens)
            self.store.feed_again(call.chain, keep)
            call.before = max(0, len(tokens) - call.prompt)
            call.work = StepWork(call.chain, keep, look, give)

        self.post(start)

    def end(self, call: Call, *, wait: bool = False) -> None:
        """The caller is done with the call, or has left it. `wait`: until nothing is left of it."""
        if wait:
            self.ask(lambda: self._stop(call, None))
        else:
            self.post(lambda: self._stop(call, None))

    def statistics(self) -> LoopStatistics:
        """A consistent view between two forwards."""
        return self.ask(self._statistics)

    def close(self, timeout: float | None = None) -> None:
        """Ends all calls with EngineClosed and the thread with them. Nothing in a forked child."""

        def stop() -> None:
            self.closed = True
            for call in list(self.calls):
                self._stop(call, EngineClosed())

        with suppress(ForkedError):
            self.ask(stop)
            self.thread.join(timeout)

    # --- the loop's thread ---

    @property
    def idle(self) -> bool:
        return not self.calls

    def patience(self) -> float | None:
        return LOOK_S if any(call.cancelled is not never for call in self.calls) else None

    def broke(self, error: BaseException) -> None:
        self.closed = True
        for call in list(self.calls):
            with suppress(Exception):  # what is broken breaks again, but the caller hears of it
                self._stop(call, error)

    def turn(self) -> bool:
        """One token for whoever's turn it is. False: nobody could go on."""
        for call in list(self.calls):
            self._heed(call)
        seated = [call for call in self.calls if call.seat.lease is not None]
        waiting = [call for call in self.calls if call.seat.asked is not None]
        if waiting:
            self.seats.share(seated, waiting)
        ready = [call for call in self.calls if call.seat.lease is not None and call.work is not None]
        ready.sort(key=lambda call: call.rank)
        chosen = self._packing.choose(ready)
        if chosen:
            self._advance(chosen)
        return bool(chosen)

    def _heed(self, call: Call) -> None:
        try:
            if not call.paused and call.cancelled():
                self._stop(call, None)
        except BaseException as error:  # noqa: BLE001 - the caller's own function; the caller hears of it
            self._stop(call, error)

    def _advance(self, chosen: Sequence[tuple[Call, list[Row]]]) -> None:
        rows = [row for _, of_call in chosen for row in of_call]
        try:
            results = self.forward.run(rows, self.store)
        except Exception as error:  # noqa: BLE001 - whatever the model raises concerns exactly these calls
            for call, _ in chosen:
                self._stop(call, error)
            return
        self.forwards += 1
        self.fed += sum(row.count for row in rows)
        at = 0
        for call, of_call in chosen:
            logits = [one for one in results[at : at + len(of_call)] if one is not None]
            at += len(of_call)
            if logits:  # of all rows or none
                self._hand_out(call, logits)

    def _hand_out(self, call: Call, logits: Sequence[Logits]) -> None:
        work = call.work
        assert work is not None
        if isinstance(work, StepWork):
            call.work = None  # its caller decides what comes next
            work.receive(logits, self.store)
            return
        try:
            done = work.receive(logits, self.store)
        except Exception as error:  # noqa: BLE001 - a sampler given impossible logits, say: the caller hears of it
            self._stop(call, error)
            return
        if done:
            self._end(call)
            work.conclude()

    def _stop(self, call: Call, error: BaseException | None) -> None:
        """The call goes no further."""
        if not call.ended and call.number:
            call.error = error
            self._end(call)
            if call.work is not None:
                call.work.stop(error)

    def _end(self, call: Call) -> None:
        """Gives everything back, but a program's chain to the program. A fault in that is the loop's end: this call's
        caller hears of it here, the others in `broke`."""
        call.ended = True
        self.calls.pop(call, None)
        try:
            self.seats.leave(call)
            for chain in call.chains:
                if chain is not call.chain:
                    self.store.drop(chain)
            if call.home is None:
                self.store.drop(call.chain)
            else:
                expected = self._idle_times.expect(str(id(call.chain)), None)
                self.kept[call.chain] = Kept(call.who.klass, self._clock.now_ns() / 1e9, expected)
        except BaseException as fault:
            call.error = fault
            if call.work is not None:
                call.work.stop(fault)
            raise
        finally:
            if call.home is not None:
                call.home.turn_ended()

    def seated(self, call: Call, lease: Lease, error: object) -> None:
        """A seat that was asked for has come, or will not: posted by whoever made room for it."""

        def sit() -> None:
            if call.seat.asked is not lease:
                return
            if error is None:
                self.seats.sit(call, lease)
            else:
                call.seat.asked = None
                self._stop(call, error)  # type: ignore[arg-type]

        self.post(sit)

    def pause(self, call: Call, *, on: bool) -> bool:
        """Stops a call at the token it is at, or lets it go on. False: it has ended."""
        if call.ended or call.paused == on:
            return not call.ended
        call.paused = on
        if on:
            self.seats.leave(call)
        else:
            self.seats.ask(call, resumed=True)
        return True

    def forget(self, chain: Chain, home: Home | None = None) -> None:
        """A program has ended, and the turn of it that runs."""
        for call in list(self.calls):
            if call.home is not None and call.home is home:
                self._stop(call, None)
        self.kept.pop(chain, None)
        self._idle_times.forget(str(id(chain)))
        self.store.drop(chain)
        chain.tokens.clear()

    def swap_out(self, chain: Chain) -> bool:
        """Takes out the KV of a program between two turns. Whether it is saved."""
        if chain in self.kept:
            self.store.save(chain)
        return chain.saved is not None

    def _statistics(self) -> LoopStatistics:
        store, traffic, counts = self.store, self.store.traffic, self.store.pool.statistics()
        return LoopStatistics(
            device=str(store.arena.device), calls=len(self.calls),
            waiting=sum(call.seat.asked is not None for call in self.calls), block_tokens=store.block,
            block_bytes=store.block * store.arena.shape.token_bytes, blocks=counts.capacity,
            used_blocks=counts.used, cached_blocks=counts.cached, peak_blocks=store.peak,
            swapped_bytes=store.swap.used, fed_tokens=self.fed, forwards=self.forwards,
            cached_tokens=traffic.cached + traffic.kept, swapped_out=traffic.swapped_out, swapped_in=traffic.swapped_in,
            dropped=traffic.dropped, switches=self.seats.switches,
        )  # fmt: skip


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _stop_all() -> None:
    """Before the interpreter ends: a daemon thread that it kills inside torch takes the whole process down."""
    for loop in list(_loops):
        if loop.thread.runs:
            loop.close()
        loop.closed = True


atexit.register(_stop_all)
