"""One compaction: what stays whole, what becomes notes, and the layout that fits the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrm.context.digest import Digest, Line, Shown, choose_facts, digest_of, strict_need
from agentrm.context.groups import Group, groups_of, newest_user_message
from agentrm.context.layout import Layout, first_change, lay_out, strip_signed_reasoning
from agentrm.context.messages import Message
from agentrm.context.open_calls import OpenCalls
from agentrm.context.pairs import repair
from agentrm.context.result import (
    KEPT,
    PAGED_OUT,
    SHORTENED,
    SUMMARISED,
    CompactionResult,
    check_count,
    check_tokens,
)
from agentrm.context.select import Choice, choose
from agentrm.context.shorten import shorten_results
from agentrm.context.summarize import Written
from agentrm.context.worth import Candidate, Worth

if TYPE_CHECKING:
    from agentrm.context.compact import Compactor

# Shares of the room that the fixed part leaves, for chat and for tool work; a history in between gets a
# share in between.
_TAIL = (0.06, 0.6)
_FACTS = (0.02, 0.35)
_FACTS_SMALL = (0.0, 0.22)  # more of a small room: a list of ids does not shrink with it
_SMALL = 1200  # tokens
_STRINGS = 0.12  # at least this share for opaque strings, where there are so many
_PROSE = 0.2
_TAIL_ASKED = 0.04
_HEADING = 48  # tokens that the notes take before they say anything
_RESULT_CAP = 0.4  # of the tail's room, for one step's results
_ATTEMPTS = 4  # choices made anew for the real size


class Batch:
    """Each step reads what earlier steps decided; `result` is the order of the steps."""

    def __init__(
        self,
        owner: Compactor,
        messages: Sequence[Message],
        target: int,
        query: str | None,
        open_calls: OpenCalls | None,
        keep_last: int | None,
        tools: Sequence[Any],
    ) -> None:
        check_tokens("target", target)
        if keep_last is not None:
            check_count("keep_last", keep_last)
        self.owner, self.counter, self.given = owner, owner.counter, tuple(messages)
        self.query, self.open_calls, self.keep_last = query, open_calls, keep_last
        self.target = max(0, target - sum(self.counter.schema(t) for t in tools))
        self.repaired = repair(messages, open_calls)
        self.order = {m.id: i for i, m in enumerate(self.repaired.messages)}
        self.reasons: list[str] = []
        self.cost = self.calls = 0
        self.again: Callable[[int], Choice] | None = None
        self.tool_work: float | None = None  # 0 to 1, of the one history that this run is about
        self.prose: str | None = None  # a model writes once a run, also when the choice is made again

    def result(self) -> CompactionResult:
        messages = self.repaired.messages
        before = self.counter.messages(self.given)
        fits = self.counter.messages(messages) <= self.target
        if fits and (self.keep_last is None or self.keep_last >= len(messages)):
            actions = {m.id: KEPT if m.id in self.order else PAGED_OUT for m in self.given}
            return self._made(messages, before, actions, None)
        summaries = [m for m in messages if m.is_summary]
        self.old = [digest_of(m) for m in summaries]
        self.lines = [line for digest in self.old for line in digest.lines]
        groups = groups_of([m for m in messages if not m.is_summary])
        newest = newest_user_message(messages)
        self.request = messages[newest].id if newest is not None else None
        self.fixed = frozenset(i for i, g in enumerate(groups) if self._is_fixed(g))
        self.room = self.target - sum(self._size(groups[i].messages) for i in self.fixed)
        kept = self._keep_last(groups) if self.keep_last is not None else self._tail(groups)
        choice, facts_room = self._choose(groups, kept)
        layout = self._fitted(groups, kept, choice, facts_room)
        out = lay_out(layout)
        out = strip_signed_reasoning(out, first_change(self.given, out))
        return self._made(out, before, self._actions(groups, layout, out), layout.digest)

    def _fitted(
        self,
        groups: Sequence[Group],
        kept: Mapping[int, tuple[Message, ...]],
        choice: Choice,
        facts_room: int,
    ) -> Layout:
        """The layout at or below the target. Sizes were reckoned: while it is not near the target, the choice is made
        again for the real size, so that what goes is what is worth least and leaves its facts in the notes."""
        layout = self._layout(groups, kept, choice, facts_room)
        for attempt in range(_ATTEMPTS):
            slack = self._slack(layout)
            grows = attempt == 0 and slack > 0.01 * self.room and self.owner.summarizer is None
            shrinks = slack < 0 and choice.used > 0 and self._has_notes
            if self.again is None or not (grows or shrinks):
                break
            choice = self.again(choice.used + int(0.95 * slack if grows else 1.1 * slack) - shrinks)
            layout = self._layout(groups, kept, choice, facts_room)
        return self._fit(layout)

    def _slack(self, layout: Layout) -> int:
        """Tokens that are left, below 0 if the list is too long; notes that say nothing do not count."""
        if layout.digest is not None and not layout.digest.has_content:
            bare = self.target - self._size(lay_out(replace(layout, digest=None)))
            return min(bare, max(0, self.target - self._size(lay_out(layout))))
        return self.target - self._size(lay_out(layout))

    @property
    def _has_notes(self) -> bool:
        """In a smaller room the heading of notes would cost more than they bring."""
        return self.room >= 4 * _HEADING

    def _layout(
        self,
        groups: Sequence[Group],
        tail: Mapping[int, tuple[Message, ...]],
        choice: Choice,
        facts_room: int,
    ) -> Layout:
        kept = {**tail, **{i: groups[i].messages for i in choice.groups}}
        digest = self._digest(groups, kept, choice, facts_room)
        return Layout(groups, self.fixed, kept, digest, self.request)

    def _made(
        self, out: Sequence[Message], before: int, actions: dict[str, str], digest: Digest | None
    ) -> CompactionResult:
        after = self.counter.messages(out)
        if after > self.target:
            self.reasons.append(
                f"what must stay takes {after} tokens, the target is {self.target}: unpin, shorten the system text "
                "or use a larger window"
            )
        summary = next((m for m in out if m.is_summary), None)
        return CompactionResult(
            tuple(out),
            before,
            after,
            self.target,
            actions,
            tuple(m.id for m in self.given),
            summary,
            self.cost,
            self.calls,
            "; ".join(self.reasons) or None,
            self.repaired.events,
        )

    def _size(self, messages: Sequence[Message]) -> int:
        return sum(self.counter.message(m) for m in messages)

    def _is_fixed(self, group: Group) -> bool:
        return (
            group.kind == "system"
            or group.pinned
            or group.is_open
            or any(m.id == self.request for m in group.messages)
        )

    def _share(self, groups: Sequence[Group], pair: tuple[float, float]) -> float:
        """Between the share for chat and the one for tool work, by how much of the history is tool work."""
        if self.tool_work is None:
            tools = sum(self._size(g.messages) for g in groups if g.kind == "tools")
            every = sum(self._size(g.messages) for g in groups if g.kind != "system") or 1
            self.tool_work = min(1.0, 1.3 * tools / every)
        return pair[0] + (pair[1] - pair[0]) * self.tool_work

    def _facts_share(self, groups: Sequence[Group]) -> float:
        more = self._share(groups, _FACTS_SMALL) * min(1.0, _SMALL / max(1, self.room))
        return self._share(groups, _FACTS) + more

    def _keep_last(self, groups: Sequence[Group]) -> dict[int, tuple[Message, ...]]:
        kept: dict[int, tuple[Message, ...]] = {}
        count, left = self.keep_last or 0, self.room
        for index in range(len(groups) - 1, -1, -1):
            if count <= 0:
                break
            count -= len(groups[index].messages)
            if index in self.fixed:
                continue
            fitting = self._fitting(groups[index], left)
            if fitting is None:
                break
            kept[index] = fitting
            left -= self._size(fitting)
        return kept

    def _tail(self, groups: Sequence[Group]) -> dict[int, tuple[Message, ...]]:
        """The newest groups, whole where they fit, tool results cut where one step would take too much."""
        share = _TAIL_ASKED if self.query is not None else self._share(groups, _TAIL)
        share = min(share, 0.92 - self._facts_share(groups))
        room = share * self.room
        newest_turn = self._newest_turn(groups)
        turn_size = sum(self._size(groups[i].messages) for i in newest_turn)
        if turn_size <= 0.75 * self.room:
            room = max(room, turn_size)
        kept: dict[int, tuple[Message, ...]] = {}
        for index in range(len(groups) - 1, -1, -1):
            if index in self.fixed:
                continue
            first = not kept
            cap = room if first else min(room, max(_RESULT_CAP * share * self.room, 64))
            size = self._size(groups[index].messages)
            fitting = (
                groups[index].messages if size <= min(room, cap) else self._fitting(groups[index], int(cap))
            )
            if fitting is None and first and self.room > 0:  # the newest step may take most of the room
                fitting = self._fitting(groups[index], int(0.6 * self.room))
            if fitting is None:
                break
            kept[index] = fitting
            room -= self._size(fitting)
            if room <= 0:
                break
        return kept

    def _newest_turn(self, groups: Sequence[Group]) -> list[int]:
        out: list[int] = []
        for index in range(len(groups) - 1, -1, -1):
            if any(m.id == self.request for m in groups[index].messages):
                break
            if index not in self.fixed:
                out.append(index)
        return out

    def _fitting(self, group: Group, tokens: int) -> tuple[Message, ...] | None:
        if self._size(group.messages) <= tokens:
            return group.messages
        if group.kind != "tools":
            return None
        return shorten_results(group.messages, tokens, self.counter)

    def _choose(self, groups: Sequence[Group], kept: dict[int, tuple[Message, ...]]) -> tuple[Choice, int]:
        left = self.room - sum(self._size(m) for m in kept.values())
        facts_room = int(self._facts_share(groups) * max(0, self.room))
        strings = (
            f for i, g in enumerate(groups) if i not in kept for m in g.messages for f in self.owner.facts(m)
        )
        need = min(strict_need(strings), int(_STRINGS * max(0, self.room)))
        facts_room = max(facts_room, need)
        if self.keep_last is not None:
            dropped = sum(self._size(g.messages) for i, g in enumerate(groups) if i not in kept)
            return Choice(frozenset(), (), 0), max(0, min(left, max(1024, dropped // 2)))
        prose_room = int(_PROSE * self.room) if self.owner.summarizer is not None else 0
        left -= facts_room + prose_room + (_HEADING if self._has_notes else 0)
        if left < 16:
            return Choice(frozenset(), (), 0), facts_room
        goal = self._goal(groups)
        worth = self.owner.index(groups, self.lines).worth(self.owner.facts, self.query, goal)
        taken = frozenset(kept) | self.fixed
        costs: dict[int, int] = {}
        whole = {c.group for c in worth.candidates if c.whole}
        for index in whole - taken:
            group = groups[index]
            costs[index] = self._size(group.messages)
        if self.owner.summarizer is not None:  # a model reads what goes: no copied notes beside its text
            worth = Worth([c for c in worth.candidates if c.group in costs], None)
        sizes = [0 if c.group in costs else self._about(c) for c in worth.candidates]
        power = 0.5 if self.query is not None else 1.0
        self.again = lambda room: choose(worth, costs, sizes, room, taken, power=power)
        return self.again(left), facts_room

    def _about(self, candidate: Candidate) -> int:
        """A passage's tokens by its share of its message: near enough to choose, nothing is counted twice."""
        whole = len(candidate.message.text)
        if not whole:
            return self.counter.text(candidate.text)
        return 1 + self.counter.message(candidate.message) * len(candidate.text) // whole

    def _goal(self, groups: Sequence[Group]) -> str:
        """What the agent works on now: the newest request and the newest step."""
        request = next((m.text for g in groups for m in g.messages if m.id == self.request), "")
        return f"{request[-600:]}\n{groups[-1].text[:400] if groups else ''}"

    def _digest(
        self,
        groups: Sequence[Group],
        kept: Mapping[int, tuple[Message, ...]],
        choice: Choice,
        facts_room: int,
    ) -> Digest:
        gone = [g for i, g in enumerate(groups) if i not in kept and i not in self.fixed]
        cut = [i for i, m in kept.items() if m is not groups[i].messages]
        covered = sum(len(g.messages) for g in gone) + sum(d.covered for d in self.old)
        prose = "\n".join(d.prose for d in self.old if d.prose)
        if gone and self.owner.summarizer is not None and self.room > 0:
            if self.prose is None:
                room = int(_PROSE * self.room) if self.keep_last is None else int(0.4 * facts_room)
                self.prose = self._written(self.owner.summarizer.summarize(gone, prose, max(0, room)))
            prose = self.prose
            if self.keep_last is not None:
                facts_room -= self.counter.text(prose)
        lines = tuple(
            Line(c.message.id, c.message.role, c.text, round(c.value, 4), self._place(c))
            for c in choice.lines
        )
        shown = Shown(
            *(m.text for ms in kept.values() for m in ms),
            *(m.text for i in self.fixed for m in groups[i].messages),
            *(line.text for line in lines),
            prose,
        )
        facts = [f for d in self.old for f in d.facts]
        for group in [*gone, *(groups[i] for i in cut)]:
            for message in group.messages:
                place = self.order.get(message.id, 0) + self._offset()
                facts.extend(replace(f, order=place) for f in self.owner.facts(message))
        spare = 0
        if self.keep_last is None:
            used = (
                choice.used
                + sum(self._size(m) for m in kept.values())
                - sum(self._size(groups[i].messages) for i in choice.groups)
            )
            spare = max(0, self.room - used - facts_room - self.counter.text(prose) - 60)
        chosen = choose_facts(
            facts, facts_room + spare // 2, self.counter, self._offset() + len(self.order), shown
        )
        return Digest(chosen, lines, prose, covered)

    def _written(self, written: Written) -> str:
        self.cost += written.input_tokens + written.output_tokens
        self.calls += written.calls
        if written.degraded:
            self.reasons.append(written.degraded)
        return written.text

    def _offset(self) -> int:
        """Places continue after what earlier compactions took out."""
        return sum(d.covered for d in self.old)

    def _place(self, candidate: Candidate) -> int:
        if candidate.group < 0:
            return self.lines[-1 - candidate.group].order
        return self.order.get(candidate.message.id, 0) + self._offset()

    def _fit(self, layout: Layout) -> Layout:
        """Takes away the least valuable until the list is at or below the target;

        ends, since each step removes.
        """
        while True:
            size = self._size(lay_out(layout))
            if size <= self.target:
                return layout
            smaller = layout.smaller(size - self.target, self.counter)
            if smaller is None:
                return layout
            layout = smaller

    def _actions(self, groups: Sequence[Group], layout: Layout, out: Sequence[Message]) -> dict[str, str]:
        present = {m.id: m for m in out}
        noted = layout.digest.sources() if layout.digest is not None else set()
        read = self.owner.summarizer is not None and layout.digest is not None and bool(layout.digest.prose)
        actions: dict[str, str] = {}
        mended = {m.id: m for m in self.repaired.messages}
        for given in self.given:
            message = mended.get(given.id, given)
            shown = present.get(message.id)
            if shown is not None and not (shown.is_summary and not message.is_summary):
                same = shown == message or shown.parts == tuple(p for p in message.parts if p in shown.parts)
                changed = SUMMARISED if message.is_summary else SHORTENED  # notes are written anew, not cut
                actions[message.id] = KEPT if same else changed
            elif message.id in noted or read or message.is_summary:
                actions[message.id] = SUMMARISED
            else:
                actions[message.id] = PAGED_OUT
        return actions
