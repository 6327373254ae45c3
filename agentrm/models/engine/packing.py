"""What goes into the next forward, and whose KV goes out for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.errors import AgentRMError, BlocksExhausted
from agentrm.models.engine.forward import Row
from agentrm.models.errors import OutOfBlocks

if TYPE_CHECKING:
    from agentrm.clock import Clock
    from agentrm.models.engine.calls import Call
    from agentrm.models.engine.store import Chain, Store
    from agentrm.models.engine.works import Work
    from agentrm.programs.predict import Idle


@dataclass(frozen=True, slots=True)
class Kept:
    """A program between two turns. `since`: when the last one ended, in the clock's seconds; `idle`: how long it is
    expected to stay so."""

    klass: int
    since: float
    idle: Idle


@dataclass(frozen=True, slots=True)
class Packing:
    """`chunk`: most tokens of prompts in one forward; a quarter of it while others write. `calls`: all that are open.
    `kept`: chains of programs between their turns. `stop`: ends a call."""

    store: Store
    chunk: int
    calls: Mapping[Call, None]
    kept: Mapping[Chain, Kept]
    clock: Clock
    stop: Callable[[Call, BaseException], object]

    def choose(self, ready: Sequence[Call]) -> list[tuple[Call, list[Row]]]:
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
                self.stop(call, OutOfBlocks(need, self.store.pool.capacity))
                continue
            except AgentRMError as error:  # a quota of its agent or tenant
                self.stop(call, error)
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
        now = self.clock.now_ns() / 1e9

        def worth(chain: Chain) -> tuple[int, float, float]:
            """The lowest class first; in it whose next turn is farthest away (Belady), then who was idle longest."""
            kept = self.kept[chain]
            return -kept.klass, -kept.idle.remaining(now - kept.since), kept.since

        for chain in sorted(self.kept, key=worth):
            yield (chain,)
        later = set(after)
        idle = [one for one in self.calls if one is not call and (one.seat.lease is None or one.work is None)]
        for one in sorted(idle, key=lambda one: one.rank, reverse=True):
            yield one.chains
        for one in sorted(later, key=lambda one: one.rank, reverse=True):
            yield one.chains
