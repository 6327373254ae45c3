"""Does each tool call have exactly one result, in its place? And how is a broken list mended?

The rule (PAIR): each tool result has exactly one earlier call with its id; each call has exactly one result
before the next user or assistant message. Providers refuse a list that breaks it, for good, because the
list does not change.

`find_breaks` names every break. `repair` gives a list without any: it never changes a text, moves a result
only to its own call, closes lost calls with a synthetic result, shows open calls with a placeholder, and
reports each thing it did. A valid list comes back as it is, message by message the same objects.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrm.context.messages import PENDING, SYNTHETIC, Message, ToolCall, ToolResult
from agentrm.context.open_calls import ANSWERED, OpenCalls, shown_text

_log = logging.getLogger("agentrm.context")


@dataclass(frozen=True, slots=True)
class PairEvent:
    """One break found or one repair made, at `index` of the list that was given.

    `kind`: orphan_result, late_result, unanswered_call, answered_twice, repeated_call_id; repairs also use
    closed_call, pending_call.
    """

    kind: str
    call_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Repaired:
    messages: tuple[Message, ...]
    events: tuple[PairEvent, ...]


def find_breaks(messages: Sequence[Message]) -> tuple[PairEvent, ...]:
    """Every break of PAIR, in list order; empty for a list that a strict provider accepts."""
    out: list[PairEvent] = []
    seen: set[str] = set()
    waiting: dict[str, int] = {}
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message.role in ("user", "assistant") and not _only_results(message):
            out.extend(PairEvent("unanswered_call", cid, at) for cid, at in waiting.items())
            waiting = {}
        for result in message.results:
            cid = result.call_id
            if cid in waiting:
                del waiting[cid]
                answered.add(cid)
            elif cid in answered:
                out.append(PairEvent("answered_twice", cid, index))
            else:
                out.append(PairEvent("late_result" if cid in seen else "orphan_result", cid, index))
        for call in message.calls:
            if call.id in seen:
                out.append(PairEvent("repeated_call_id", call.id, index))
            seen.add(call.id)
            waiting[call.id] = index
    out.extend(PairEvent("unanswered_call", cid, at) for cid, at in waiting.items())
    return tuple(out)


def is_valid(messages: Sequence[Message]) -> bool:
    return not find_breaks(messages)


def repair(messages: Sequence[Message], open_calls: OpenCalls | None = None) -> Repaired:
    """A list that keeps PAIR, and what was done.

    `open_calls` says which calls without a result are still running or waiting for approval; every other
    one is closed as interrupted (or as the registry says it ended). Of several results of one call the
    first real one stays.
    """
    events: list[PairEvent] = []
    known = OpenCalls() if open_calls is None else open_calls
    if not any(PENDING in m.flags for m in messages) and not find_breaks(messages) and _adjacent(messages):
        return Repaired(tuple(messages), ())
    calls, results = _collect(messages, events)
    claimed: dict[int, list[tuple[int, Message]]] = {}
    for (index, call), found in zip(calls, _match(calls, results, events), strict=True):
        if found is None:
            found = (index, _stand_in(messages[index], call, known, index, events))
        elif _between(messages, index, found[0]):
            events.append(PairEvent("late_result", call.id, found[0]))
        claimed.setdefault(index, []).append(found)
    out: list[Message] = []
    renamed = {(i, c.id): new for i, c, new in _renames(calls, events)}
    for index, message in enumerate(messages):
        rest = tuple(p for p in message.parts if not isinstance(p, ToolResult))
        if message.role == "tool" or (message.results and not rest):
            continue  # results are placed behind their calls
        kept = message if len(rest) == len(message.parts) else message.with_parts(rest)
        out.append(_rename_calls(kept, index, renamed))
        for _, answer in sorted(claimed.get(index, ()), key=lambda pair: pair[0]):
            out.append(_rename_result(answer, index, renamed))
    for event in events:
        if event.kind == "closed_call":
            _log.info("closed call %s: it had no result and nobody runs it", event.call_id)
    return Repaired(tuple(out), tuple(sorted(events, key=lambda e: e.index)))


def _only_results(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(p, ToolResult) for p in message.parts)


def _adjacent(messages: Sequence[Message]) -> bool:
    """True when every result stands in a message of its own directly behind its call (no system text
    between).
    """
    run: set[str] = set()
    for message in messages:
        if message.results:
            if not _only_results(message) or not all(r.call_id in run for r in message.results):
                return False
        else:
            run = {c.id for c in message.calls}
    return True


_Call = tuple[int, ToolCall]
_Answer = tuple[int, Message]


def _collect(messages: Sequence[Message], events: list[PairEvent]) -> tuple[list[_Call], list[_Answer]]:
    """All calls, and all real results as one message each."""
    calls: list[_Call] = []
    results: list[_Answer] = []
    for index, message in enumerate(messages):
        calls.extend((index, c) for c in message.calls)
        found = [] if PENDING in message.flags else message.results
        for number, result in enumerate(found):
            if _only_results(message) and len(message.results) == 1:
                results.append((index, message))
            else:
                single = Message(
                    f"{message.id}.{number}", "tool", (result,), None, message.created, message.flags
                )
                results.append((index, single))
    return calls, results


def _match(
    calls: Sequence[_Call], results: Sequence[_Answer], events: list[PairEvent]
) -> list[_Answer | None]:
    """The result of each call: the first with its id behind it and before a later call that reuses the id."""
    by_id: dict[str, list[int]] = {}
    for number, (_, call) in enumerate(calls):
        by_id.setdefault(call.id, []).append(number)
    out: list[_Answer | None] = [None] * len(calls)
    for index, answer in results:
        call_id = answer.results[0].call_id
        owners = [n for n in by_id.get(call_id, ()) if calls[n][0] < index]
        if not owners:
            events.append(PairEvent("orphan_result", call_id, index))
        elif out[owners[-1]] is None:
            out[owners[-1]] = (index, answer)
        else:
            # Parallel calls of one message that share an id: the next of them that has no answer yet.
            same = [n for n in owners if calls[n][0] == calls[owners[-1]][0] and out[n] is None]
            if same:
                out[same[0]] = (index, answer)
            else:
                events.append(PairEvent("answered_twice", call_id, index))
    return out


def _stand_in(
    owner: Message, call: ToolCall, known: OpenCalls, index: int, events: list[PairEvent]
) -> Message:
    outcome = known.outcome(call.id)
    is_open = known.is_open(call.id)
    if outcome == ANSWERED:  # the answer is in the store, not in this list
        outcome = None
    events.append(PairEvent("pending_call" if is_open else "closed_call", call.id, index))
    result = ToolResult(call.id, shown_text(outcome), is_error=not is_open, name=call.name or None)
    flags = frozenset({SYNTHETIC, PENDING}) if is_open else frozenset({SYNTHETIC})
    kind = "pending" if is_open else "closed"
    return Message(f"{owner.id}.{call.id}.{kind}", "tool", (result,), None, owner.created, flags)


def _between(messages: Sequence[Message], call_at: int, result_at: int) -> bool:
    return any(m.role != "tool" and not _only_results(m) for m in messages[call_at + 1 : result_at])


def _renames(calls: Sequence[_Call], events: list[PairEvent]) -> list[tuple[int, ToolCall, list[str]]]:
    """New ids for calls that reuse an id: `x` stays, then `x.2`, `x.3`."""
    count: dict[str, int] = {}
    taken = {c.id for _, c in calls}
    per_message: dict[tuple[int, str], tuple[int, ToolCall, list[str]]] = {}
    for index, call in calls:
        count[call.id] = count.get(call.id, 0) + 1
        name = call.id
        if count[call.id] > 1:
            events.append(PairEvent("repeated_call_id", call.id, index))
            name = f"{call.id}.{count[call.id]}"
            while name in taken:
                name += "'"
            taken.add(name)
        entry = per_message.setdefault((index, call.id), (index, call, []))
        entry[2].append(name)
    return [entry for entry in per_message.values() if entry[2] != [entry[1].id]]


def _rename_calls(message: Message, index: int, renamed: dict[tuple[int, str], list[str]]) -> Message:
    if not renamed or not any((index, c.id) in renamed for c in message.calls):
        return message
    used: dict[str, int] = {}
    parts = []
    for part in message.parts:
        if isinstance(part, ToolCall) and (index, part.id) in renamed:
            nth = used.get(part.id, 0)
            used[part.id] = nth + 1
            part = replace(part, id=renamed[index, part.id][nth])
        parts.append(part)
    return message.with_parts(parts)


def _rename_result(answer: Message, index: int, renamed: dict[tuple[int, str], list[str]]) -> Message:
    result = answer.results[0]
    names = renamed.get((index, result.call_id))
    if names is None:
        return answer
    return answer.with_parts([replace(result, call_id=names.pop(0))])
