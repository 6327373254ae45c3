"""The loop of one device: at each token it decides whose turn it is, makes room, runs the model once and hands out.

Everything below its inbox belongs to its one thread: the store, the works, the seats. Others post what they want and
hear of it by callback. The thread is there while there is work, and a little longer.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentrm.errors import AgentRMError, BlocksExhausted
from agentrm.models.engine.forward import Forward, Logits, Row
from agentrm.models.engine.seats import Seat, Seats, Turns, Who
from agentrm.models.engine.store import Chain, Store
from agentrm.models.engine.works import StepWork, Work
from agentrm.models.errors import EngineClosed, OutOfBlocks

if TYPE_CHECKING:
    from agentrm.scheduling import Lease

T = TypeVar("T")
LINGER_S = 2.0
LOOK_S = 0.05
"""How often a call that waits in the queue is asked whether it was cancelled, if nothing else happens."""


def _never() -> bool:
    return False


class Home(Protocol):
    """A program whose turn a call is."""

    def turn_ended(self) -> None:
        """In the loop's thread."""
        ...


@dataclass(eq=False, slots=True)
class Call:
    """One call of the engine. `home`: the program that keeps its chain afterwards, None if nobody does."""

    who: Who
    chain: Chain
    limit: int
    """Most tokens that it writes."""
    cancelled: Callable[[], bool] = _never
    home: Home | None = None
    work: Work | None = None
    seat: Seat = field(default_factory=Seat)
    number: int = 0
    prompt: int = 0
    """Tokens of its prompt."""
    touched: bool = False
    """Whether anything was computed for it."""
    paused: bool = False
    ended: bool = False
    error: BaseException | None = None
    """Why it ended, if not as it should."""
    before: int = 0
    """Tokens that its earlier works have written."""

    @property
    def rank(self) -> tuple[int, int]:
        """Who comes first: by class, then arrival."""
        return self.who.klass, self.number

    @property
    def written(self) -> int:
        return self.before + (self.work.written if self.work is not None else 0)

    @property
    def chains(self) -> Sequence[Chain]:
        return (self.chain,) if self.work is None else self.work.chains


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
    """See the module. `chunk`: most tokens of prompts in one forward; a quarter of it while others write."""

    def __init__(self, forward: Forward, store: Store, turns: Turns, chunk: int) -> None:
        self.forward, self.store, self.chunk = forward, store, chunk
        self.seats = Seats(turns, self.seated)
        self.calls: dict[Call, None] = {}
        self.kept: dict[Chain, tuple[int, int]] = {}
        """Chains of programs between their turns, with class and time of the last one."""
        self.fed = self.forwards = self._number = 0
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.closed = False
        _loops.add(self)

    # --- from any thread ---

    def post(self, what: Callable[[], object]) -> None:
        """Has it done in the loop's thread, between two forwards."""
        self._inbox.put(what)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentrm-engine", daemon=True)
                self._thread.start()

    def ask(self, what: Callable[[], T]) -> T:
        """As `post`, and waits for the result."""
        answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put((what(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                answer.put((None, error))

        if threading.current_thread() is self._thread:
            return what()
        self.post(work)
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

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
            self.kept.pop(call.chain, None)
            try:
                if self.closed:
                    raise EngineClosed
                self.store.set_tokens(call.chain, tokens)
                self.store.feed_again(call.chain, 1)
                call.chain.account = self.store.pool.account(call.who.agent, call.who.tenant)
                call.chain.turn, call.chain.wish = len(tokens), len(tokens) + call.limit
                self.store.traffic.kept += call.chain.fed
                if make is not None:
                    call.work = make()
                self.calls[call] = None
                self.seats.ask(call)
            except BaseException as error:  # noqa: BLE001 - the caller hears of it
                call.error = error
                self._end(call)
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

    def step(self, call: Call, tokens: Sequence[int], keep: int, give: Callable[[Any], object]) -> None:
        """Computes the logits after a call's tokens; `give` gets them, an error, or None if the call was cancelled."""

        def start() -> None:
            if call.ended:
                give(call.error)
                return
            self.store.set_tokens(call.chain, tokens)
            self.store.feed_again(call.chain, keep)
            call.before = max(0, len(tokens) - call.prompt)
            call.work = StepWork(call.chain, keep, give)

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
        """Ends all calls with EngineClosed and the thread with them."""

        def stop() -> None:
            self.closed = True
            for call in list(self.calls):
                self._stop(call, EngineClosed())

        thread = self._thread
        self.ask(stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    # --- the loop's thread ---

    def _run(self) -> None:
        import torch

        try:
            with torch.inference_mode():
                self._turn()
        except BaseException as error:  # a fault of the loop itself: nobody may wait for it for ever
            self.closed = True
            for call in list(self.calls):
                self._stop(call, error)
            with self._lock:
                self._thread = None
            self.post(lambda: None)  # another thread tells those who have asked meanwhile that it is closed
            raise

    def _turn(self) -> None:
        while True:
            busy = self._iterate()
            try:
                while True:
                    self._inbox.get_nowait()()
            except queue.Empty:
                pass
            if busy and not self.closed:
                continue
            try:
                self._inbox.get(timeout=self._patience())()
            except queue.Empty:
                with self._lock:
                    if not self.calls and self._inbox.empty():
                        self._thread = None
                        return

    def _patience(self) -> float | None:
        if self.closed:
            return 0.0
        if not self.calls:
            return LINGER_S
        return LOOK_S if any(call.cancelled is not _never for call in self.calls) else None

    def _iterate(self) -> bool:
        """One token for whoever's turn it is. False: nobody could go on."""
        for call in list(self.calls):
            self._heed(call)
        seated = [call for call in self.calls if call.seat.lease is not None]
        waiting = [call for call in self.calls if call.seat.asked is not None]
        if waiting:
            self.seats.share(seated, waiting)
        ready = [call for call in self.calls if call.seat.lease is not None and call.work is not None]
        ready.sort(key=lambda call: call.rank)
        chosen = self._choose(ready)
        if chosen:
            self._advance(chosen)
        return bool(chosen)

    def _heed(self, call: Call) -> None:
        try:
            if not call.paused and call.cancelled():
                self._stop(call, None)
        except BaseException as error:  # noqa: BLE001 - the caller's own function; the caller hears of it
            self._stop(call, error)

    def _choose(self, ready: Sequence[Call]) -> list[tuple[Call, list[Row]]]:
        """The rows of the next forward: what writes goes on, prompts share what is left of the chunk."""
        writing = any(all(chain.pending == 1 for chain in call.chains) for call in ready)
        room = max(1, self.chunk // 4) if writing else self.chunk
        chosen: list[tuple[Call, list[Row]]] = []
        for call in ready:
            work = call.work
            assert work is not None
            if not call.touched:
                self._adopt(call)
            if room <= 0 and any(chain.pending > work.keep for chain in work.chains):
                continue
            rows = self._rows(work, room)
            need = sum(self.store.needed(row.chain, row.chain.fed + row.count) for row in rows)
            if any(chain.saved is not None for chain in work.chains) and chosen:
                need += len(ready)  # or it would have to go again at once
            if not self._make_room(need, call, ready) and chosen:
                continue
            try:
                rows = self._prepare(work, rows, room)
            except BlocksExhausted:  # nobody is before it, all others have given up what they had
                self._stop(call, OutOfBlocks(need, self.store.pool.capacity))
                continue
            except AgentRMError as error:  # a quota of its agent or tenant
                self._stop(call, error)
                continue
            chosen.append((call, rows))
            room -= sum(row.count for row in rows if row.count > 1)
        return chosen

    def _adopt(self, call: Call) -> None:
        for chain in call.chains:
            self.store.adopt(chain)
        call.touched = True
        call.chain.known = min(call.chain.fed, call.prompt)

    def _rows(self, work: Work, room: int) -> list[Row]:
        """What a work would feed. Several chains go on together: those that have to catch up do so first."""
        behind = [chain for chain in work.chains if chain.pending > work.keep]
        if len(work.chains) == 1 or not behind:
            return [self._row(chain, work.keep, room) for chain in work.chains]
        rows = []
        for chain in behind:
            if room > 0:
                rows.append(Row(chain, min(room, chain.pending - work.keep), 0))
                room -= rows[-1].count
        return rows

    def _row(self, chain: Chain, keep: int, room: int) -> Row:
        count = chain.pending
        if self.store.exact and chain.fed < len(chain.tokens) - keep:
            count = min(count, chain.turn - chain.fed) if chain.fed < chain.turn else 1
        if count > room:
            count = max(1, min(room, chain.pending - keep))
        return Row(chain, count, keep if count == chain.pending else 0)

    def _prepare(self, work: Work, rows: list[Row], room: int) -> list[Row]:
        """Gives the rows their places. If saved KV did not come back, the rows are others: the tokens that lost it."""
        had = [row.chain.fed for row in rows]
        for row, fed in zip(rows, had, strict=True):
            self.store.prepare(row.chain, fed + row.count)
        if all(row.chain.fed == fed for row, fed in zip(rows, had, strict=True)):
            return rows
        return self._rows(work, room)

    def _make_room(self, need: int, call: Call, ready: Sequence[Call]) -> bool:
        """Takes KV out of the arena until `need` blocks are there: of programs between turns first, then of calls that
        wait, then of calls that come after this one. False: what is left belongs to calls before it."""
        if need <= 0 or self.store.available >= need:
            return True
        after = ready[ready.index(call) + 1 :]
        for chains in self._victims(call, after):
            for chain in chains:
                self.store.save(chain)
            if self.store.available >= need:
                return True
        return False

    def _victims(self, call: Call, after: Sequence[Call]) -> Iterable[Sequence[Chain]]:
        for chain in sorted(self.kept, key=lambda chain: (-self.kept[chain][0], self.kept[chain][1])):
            yield (chain,)
        later = set(after)
        idle = [one for one in self.calls if one is not call and (one.seat.lease is None or one.work is None)]
        for one in sorted(idle, key=lambda one: one.rank, reverse=True):
            yield one.chains
        for one in sorted(later, key=lambda one: one.rank, reverse=True):
            yield one.chains

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
        """Gives everything back, but a program's chain to the program."""
        call.ended = True
        self.calls.pop(call, None)
        self.seats.leave(call)
        for chain in call.chains:
            if chain is not call.chain:
                self.store.drop(chain)
        if call.home is None:
            self.store.drop(call.chain)
        else:
            self._number += 1
            self.kept[call.chain] = call.who.klass, self._number
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
        self.store.drop(chain)
        chain.tokens.clear()

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
        if loop._thread is not None:
            loop.close()
        loop.closed = True


atexit.register(_stop_all)
