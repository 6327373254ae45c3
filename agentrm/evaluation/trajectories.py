"""What does a context limit cost an agent run: broken lists, lost arguments, prompt tokens read again?

Each recorded run is replayed call by call. When the context passes the limit, the method makes it smaller;
between, it only grows. Per call it is checked whether a strict provider would accept the list, and whether
the values in the recorded call's arguments that had been seen earlier (outside system text and task) are
still there.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.compact import Compactor
from agentrm.context.embed import choose_embedder
from agentrm.context.groups import Group, groups_of
from agentrm.context.messages import Message, Text
from agentrm.context.pairs import is_valid, repair
from agentrm.context.similarity import VectorCache
from agentrm.context.wordstats import BM25, words_of
from agentrm.evaluation.datasets import Trajectory
from agentrm.evaluation.plain_counter import PlainCounter, wire_text

OURS = frozenset({"agentrm", "agentrm-no-faiss"})
LOW = 0.5  # share of the limit that a compaction goes down to
LOW_OF_SHARE = (
    0.9  # where the limit is a share of a run: such runs are short, their prefix cache is not the question
)
_NAMES = re.compile(
    r"(?:[\w.~-]+)?(?:/[\w.+-]+)+|\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\b|\b[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+\b"
)


@dataclass(frozen=True, slots=True)
class Row:
    """`invalid` and `carried` are shares of calls and of values; the rest are means per trajectory."""

    method: str
    limit: float
    trajectories: int
    exceeded: int
    invalid: float
    carried: float
    prefill_again_tokens: float
    input_tokens: float
    compactions: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


Shrink = Callable[[list[Message], int], list[Message]]


def evaluate(
    trajectories: Sequence[Trajectory],
    methods: Sequence[str],
    limit: float,
    *,
    low: float | None = None,
    vectors: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """One row per method. `limit` above 1 is in tokens (characters / 4); up to 1 it is a share of each
    run: system text and

    task, plus that share of the rest. `low` is the share of the limit that a compaction goes down to
    (default 0.5), or, for a limit that is a share, of the limit's room beyond the fixed part (default 0.9).
    """
    cache = VectorCache(choose_embedder(), vectors) if {"agentrm", "dense"} & set(methods) else None
    return [_method(trajectories, name, limit, low, cache, progress) for name in methods]


def _method(
    trajectories: Sequence[Trajectory],
    name: str,
    limit: float,
    low: float | None,
    cache: VectorCache | None,
    progress: Callable[[str], None] | None,
) -> Row:
    calls = broken = exceeded = compactions = 0
    found = wanted = 0
    prefill = read = seconds = 0.0
    for trajectory in trajectories:
        run = _Replay(trajectory, _shrinker(name, trajectory, cache), limit, low, name in OURS)
        run.go()
        calls, broken = calls + run.calls, broken + run.broken
        found, wanted = found + run.found, wanted + run.wanted
        prefill, read = prefill + run.prefill, read + run.read
        compactions += run.compactions
        exceeded += run.compactions > 0
        seconds += run.seconds
        if progress is not None:
            progress(f"{trajectory.id}: {name}")
    n = max(1, len(trajectories))
    return Row(
        name,
        limit,
        len(trajectories),
        exceeded,
        broken / max(1, calls),
        found / wanted if wanted else 1.0,
        prefill / n,
        read / n,
        compactions / n,
        seconds / max(1, compactions),
    )


class _Replay:
    def __init__(
        self, trajectory: Trajectory, shrink: Shrink | None, limit: float, low: float | None, repaired: bool
    ) -> None:
        self.messages = trajectory.messages
        self.counter = PlainCounter()
        self.shrink = shrink
        self.repaired = repaired  # our sessions show a valid list at every call
        first = next((i for i, m in enumerate(self.messages) if m.role == "assistant"), 0)
        self.pinned = first
        fixed = sum(self._size(m) for m in self.messages[:first])
        total = sum(self._size(m) for m in self.messages)
        self.limit = limit if limit > 1 else fixed + limit * (total - fixed)
        if limit > 1:
            self.low = (LOW if low is None else low) * self.limit
        else:
            self.low = fixed + (LOW_OF_SHARE if low is None else low) * (self.limit - fixed)
        self.calls = self.broken = self.compactions = self.found = self.wanted = 0
        self.prefill = self.read = self.seconds = 0.0

    def _size(self, message: Message) -> float:
        return len(wire_text(message)) / 4

    def go(self) -> None:
        context: list[Message] = list(self.messages[: self.pinned])
        cached: list[Message] = []
        seen: list[str] = []
        for index in range(self.pinned, len(self.messages)):
            message = self.messages[index]
            if message.role == "assistant":
                context = self._call(message, context, cached, "\n".join(seen))
                cached = [*context, message]
            context.append(message)
            seen.append(wire_text(message))

    def _call(
        self, reply: Message, context: list[Message], cached: list[Message], seen: str
    ) -> list[Message]:
        if self.shrink is not None and sum(map(self._size, context)) > self.limit:
            started = time.perf_counter()
            context = self.shrink(context, int(self.low))
            self.seconds += time.perf_counter() - started
            self.compactions += 1
        elif self.repaired:
            context = list(repair(context).messages)
        self.calls += 1
        self.broken += not is_valid(context)
        same = 0
        while same < min(len(context), len(cached)) and context[same] == cached[same]:
            same += 1
        self.prefill += sum(map(self._size, context[same:]))
        self.read += sum(map(self._size, context))
        carried = [v for v in carried_values(reply) if v in seen]
        if carried:
            text = "\n".join(map(wire_text, context))
            self.wanted += len(carried)
            self.found += sum(v in text for v in carried)
        return context


def carried_values(message: Message) -> list[str]:
    """What a call's arguments may have taken from earlier turns: short strings with a digit, numbers from
    1,000 on, and

    in longer texts (commands, code) paths and dotted or snake_case names. Each once.
    """
    out: dict[str, None] = {}
    for call in message.calls:
        arguments: Any = call.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = {"text": arguments}
        for leaf in _leaves(arguments):
            if isinstance(leaf, bool) or leaf is None:
                continue
            if isinstance(leaf, (int, float)):
                if abs(leaf) >= 1000:
                    out[str(leaf)] = None
            elif len(leaf) <= 40 and not re.search(r"\s", leaf):
                if any(c.isdigit() for c in leaf) or _NAMES.fullmatch(leaf):
                    out[leaf] = None
            else:
                out.update(dict.fromkeys(m.group() for m in _NAMES.finditer(leaf)))
    return list(out)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    if isinstance(value, list):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def _shrinker(name: str, trajectory: Trajectory, cache: VectorCache | None) -> Shrink | None:
    if name == "none":
        return None
    if name in ("agentrm", "agentrm-no-faiss"):
        compactor = Compactor(PlainCounter(), embedder=None, vectors=cache if name == "agentrm" else None)
        return lambda context, target: list(compactor.compact(context, target).messages)
    if name == "keep-last":
        return _last_messages
    if name == "langchain-trim":
        return _langchain
    if name == "belady":
        return lambda context, target: _ranked(context, target, _future_use(trajectory, context), 0.3)
    if name == "memgpt":
        return _memgpt
    if name == "first-last":
        return _first_last
    if name == "idf":
        return lambda context, target: _ranked(context, target, _rarity(context), 0.5)
    if name in ("bm25", "bm25-neighbours"):
        return lambda context, target: _ranked(context, target, _recalled(context, name != "bm25"), 0.5)
    if name == "dense":
        return lambda context, target: _ranked(context, target, _near(context, cache), 0.5)
    raise LookupError(f"method {name!r} is unknown for trajectories")


def _split(context: Sequence[Message]) -> tuple[list[Message], list[Group]]:
    first = next((i for i, m in enumerate(context) if m.role == "assistant"), len(context))
    return list(context[:first]), groups_of(repair(context[first:]).messages)


def _cost(messages: Sequence[Message]) -> float:
    return sum(len(wire_text(m)) / 4 for m in messages)


def _last_messages(context: list[Message], target: int) -> list[Message]:
    """System and task, then the newest messages one by one: what a plain window does, pairs or not."""
    first = next((i for i, m in enumerate(context) if m.role == "assistant"), len(context))
    left = target - _cost(context[:first])
    out: list[Message] = []
    for message in reversed(context[first:]):
        left -= _cost([message])
        if left < 0:
            break
        out.insert(0, message)
    return [*context[:first], *out]


def _first_last(context: list[Message], target: int) -> list[Message]:
    head, groups = _split(context)
    scores = [1e9 - i if i < max(1, len(groups) // 10) else float(i) for i in range(len(groups))]
    return _ranked(context, target, scores, 0.8)


def _ranked(context: list[Message], target: int, scores: Sequence[float], newest: float) -> list[Message]:
    """The newest groups in `newest` of the room, then the others by score."""
    head, groups = _split(context)
    left = target - _cost(head)
    window = newest * left
    kept: set[int] = set()
    for i in range(len(groups) - 1, -1, -1):
        size = _cost(groups[i].messages)
        if kept and size > window:
            break
        window, left = window - size, left - size
        kept.add(i)
    for i in sorted(range(len(groups)), key=lambda i: -scores[i]):
        size = _cost(groups[i].messages)
        if i not in kept and size <= left:
            kept.add(i)
            left -= size
    return [*head, *(m for i in sorted(kept) for m in groups[i].messages)]


def _rarity(context: list[Message]) -> list[float]:
    _, groups = _split(context)
    words = [set(words_of(" ".join(map(wire_text, g.messages)))) for g in groups]
    count: dict[str, int] = {}
    for own in words:
        for word in own:
            count[word] = count.get(word, 0) + 1
    return [
        sum(math.log(len(groups) / count[w]) for w in own) / max(1.0, _cost(g.messages))
        for own, g in zip(words, groups, strict=True)
    ]


def _recalled(context: list[Message], neighbours: bool) -> list[float]:
    _, groups = _split(context)
    words = [words_of(" ".join(map(wire_text, g.messages))) for g in groups]
    scores = BM25(words).scores(words[-1]) if words else []
    if neighbours:
        around = [max(scores[max(0, i - 1) : i + 2]) for i in range(len(scores))]
        scores = [s + 0.9 * a for s, a in zip(scores, around, strict=True)]
    return scores


def _near(context: list[Message], cache: VectorCache | None) -> list[float]:
    _, groups = _split(context)
    if cache is None or not groups:
        return [0.0] * len(groups)
    rows = cache.vectors([" ".join(map(wire_text, g.messages))[:1200] for g in groups])
    return [float(s) for s in rows @ rows[-1]]


def _future_use(trajectory: Trajectory, context: list[Message]) -> list[float]:
    """Offline: how many values of later calls each group holds, per token."""
    _, groups = _split(context)
    known = {m.id for m in context}
    at = max((i for i, m in enumerate(trajectory.messages) if m.id in known), default=0)
    later = [v for m in trajectory.messages[at + 1 :] for v in carried_values(m)]
    out = []
    for group in groups:
        text = "\n".join(map(wire_text, group.messages))
        out.append(sum(v in text for v in set(later)) / max(1.0, _cost(group.messages)))
    return out


def _memgpt(context: list[Message], target: int) -> list[Message]:
    """The newest groups, and the first line of older ones in a tenth of the target."""
    head, groups = _split(context)
    kept = _ranked(context, int(target * 0.9), [0.0] * len(groups), 1.0)
    ids = {m.id for m in kept}
    lines = [g.messages[0].text.split("\n")[0][:120] for g in groups if g.messages[0].id not in ids]
    text = "\n".join(lines)[-int(0.4 * target) :]
    note = Message("memgpt.summary", "user", (Text(text),))
    return [*head, note, *kept[len(head) :]]


def _langchain(context: list[Message], target: int) -> list[Message]:
    """LangChain's `trim_messages` with the options that its documentation recommends for agents."""
    from langchain_core.messages import trim_messages

    from agentrm.context.convert_langchain import from_langchain, to_langchain

    def count(messages: Any) -> int:
        return math.ceil(_cost(from_langchain(messages)))

    kept = trim_messages(
        to_langchain(context),
        max_tokens=target,
        token_counter=count,
        strategy="last",
        include_system=True,
        allow_partial=False,
        start_on=("human", "ai"),
    )
    by_id = {m.id: m for m in context}
    return [by_id[str(m.id)] for m in kept if str(m.id) in by_id]
