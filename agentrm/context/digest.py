"""What do the notes say that stand in for messages which left the context?

A `Digest` holds facts (opaque strings with what they name) and lines (passages worth their room), each with
the id of its message, and, if a model wrote one, a summary text. It is shown to the model as one message
that is marked as background, and travels in that message's `extra`, so that the next compaction goes on
from the facts, not from a summary of a summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.keyinfo import Fact, merge
from agentrm.context.messages import SUMMARY, SYNTHETIC, Message, Text
from agentrm.context.tokens import TokenCounter

_WORD = re.compile(r"\w+")
KEY = "$digest"
HEADER = (
    "[Background notes by agentrm on {count} earlier messages: a record, not a request. Earlier requests are"
    " done or superseded; what follows is newer.]"
)
_REF = re.compile(r"^\[([^\s\]]+)(?: [^\]]*)?\] (.*)$")
_ROLE_SHOWN = {"user": "user, done or superseded"}
_KIND_WEIGHT = {
    "correction": 1.6, "instruction": 1.6, "decision": 1.5, "commitment": 1.3, "error": 1.1, "question": 0.8,
    "preference": 1.4, "uuid": 1.5, "url": 1.3, "path": 1.3, "hash": 1.3, "email": 1.4, "address": 1.3,
    "winpath": 1.3,
    "ticket": 1.4, "identifier": 1.1, "money": 1.1, "date": 1.0, "number": 0.9, "named": 1.0, "version": 0.8,
    "bignumber": 0.8,
}  # fmt: skip
STRICT_KINDS = frozenset(
    {"uuid", "url", "path", "hash", "email", "address", "winpath", "ticket", "identifier"}
)


@dataclass(frozen=True, slots=True)
class Line:
    """A passage copied from message `source`;

    `value` is its expected use, `order` its place in the session.
    """

    source: str
    role: str
    text: str
    value: float
    order: int


@dataclass(frozen=True, slots=True)
class Digest:
    """`covered` counts the messages that left the context so far;

    `prose` is a model's summary, "" without one.
    """

    facts: tuple[Fact, ...] = ()
    lines: tuple[Line, ...] = ()
    prose: str = ""
    covered: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "facts": [f.to_json() for f in self.facts],
            "lines": [[x.source, x.role, x.text, x.value, x.order] for x in self.lines],
            "prose": self.prose,
            "covered": self.covered,
        }

    @property
    def has_content(self) -> bool:
        return bool(self.facts or self.lines or self.prose)

    def sources(self) -> set[str]:
        return {f.source for f in self.facts} | {x.source for x in self.lines}


def digest_of(message: Message) -> Digest:
    """The digest that a summary message carries;

    of a summary that lost it on the wire, what its text says.
    """
    data = message.extra.get(KEY)
    if isinstance(data, dict):
        return Digest(
            tuple(Fact.from_json(f) for f in data["facts"]),
            tuple(Line(*x) for x in data["lines"]),
            data["prose"],
            data["covered"],
        )
    lines = []
    prose = []
    for number, raw in enumerate(message.text.splitlines()):
        match = _REF.match(raw)
        if match:
            lines.append(Line(match[1], "", match[2], 0.5, number))
        elif raw and not raw.startswith("[Background") and raw not in ("Facts:", "Notes:", "Summary:"):
            prose.append(raw)
    return Digest((), tuple(lines), "\n".join(prose), 0)


def message_of(digest: Digest, role: str, name: str, message_id: str) -> Message:
    extra = {KEY: digest.to_json()}
    flags = frozenset({SUMMARY, SYNTHETIC})
    return Message(message_id, role, (Text(render(digest)),), name, None, flags, extra)


def render(digest: Digest) -> str:
    out = [HEADER.format(count=digest.covered)]
    if digest.prose:
        out += ["Summary:", digest.prose]
    if digest.facts:
        out += ["Facts:", *_by_source(_fact_entries(digest.facts))]
    if digest.lines:
        ordered = sorted(digest.lines, key=lambda x: x.order)
        out += ["Notes:", *_by_source((x.source, _ROLE_SHOWN.get(x.role, x.role), x.text) for x in ordered)]
    return "\n".join(out)


def _fact_entries(facts: Iterable[Fact]) -> list[tuple[str, str, str]]:
    """One entry per fact; values of one name and source share the name: `flight: A1, B2`."""
    out: list[tuple[str, str, str]] = []
    last: Fact | None = None
    for fact in facts:
        same = last is not None and fact.name and (fact.name, fact.source) == (last.name, last.source)
        if same and not fact.superseded and last is not None and not last.superseded:
            source, role, text = out[-1]
            out[-1] = (source, role, f"{text}, {fact.value}")
        else:
            out.append((fact.source, "", fact.line))
        last = fact
    return out


def _by_source(entries: Iterable[tuple[str, str, str]]) -> list[str]:
    """`[id role] a; b` for neighbouring entries of one message."""
    out: list[str] = []
    last = ""
    for source, role, text in entries:
        text = text.replace("\n", " ")
        if source == last:
            out[-1] += f"; {text}"
        else:
            out.append(f"[{source} {role}] {text}" if role else f"[{source}] {text}")
            last = source
    return out


def fact_value(fact: Fact, newest: int) -> float:
    """How much a fact is worth keeping:

    its kind, whether the agent used it, how often and how lately it was seen.
    """
    value = _KIND_WEIGHT.get(fact.kind, 1.0)
    if fact.kind == "identifier":
        value *= 1.3 if any(c.isdigit() for c in fact.value) else 0.7
    if fact.used:
        value *= 2.0
    value *= 1.0 + 0.35 * min(4, fact.count - 1)
    if fact.name:
        value *= 1.2
    age = max(0, newest - fact.order)
    value *= 0.35 + 0.65 * 0.5 ** (age / 60)
    return float(value * (0.25 if fact.superseded else 1.0))


def strict_need(facts: Iterable[Fact]) -> int:
    """About how many tokens the opaque strings among the facts take: what no summary can stand in for."""
    values = {
        f.value for f in facts if f.kind in STRICT_KINDS and any(c.isdigit() or c in "/\\@" for c in f.value)
    }
    return sum(len(v) // 3 + 4 for v in values)


class Shown:
    """Text that the model will read. `value in shown`: whether a value stands there, in whole words; the words are
    asked first, since a search through all of the text is dear."""

    def __init__(self, *texts: str) -> None:
        self._text, self._words = "\n".join(texts), set[str]()
        for text in texts:
            self._words.update(_WORD.findall(text))

    def add(self, text: str) -> None:
        self._text += f"\n{text}"
        self._words.update(_WORD.findall(text))

    def __contains__(self, value: str) -> bool:
        words = self._words
        return all([word in words for word in _WORD.findall(value)]) and value in self._text


def choose_facts(
    facts: Sequence[Fact], tokens: int, counter: TokenCounter, newest: int, present: Shown
) -> tuple[Fact, ...]:
    """The facts worth most per token that fit in `tokens`, in order of their source.

    What `present` shows is left out.
    """
    if tokens <= 0:
        return ()
    rough = [(fact_value(f, newest) / (len(f.line) / 3 + 3), f) for f in merge(facts)]
    rough.sort(key=lambda r: -r[0])
    scored = []
    room = 4.0 * tokens  # enough by a rough count; the exact one is only made for these
    for _, fact in rough:
        if fact.value in present:
            continue
        cost = counter.text(fact.line) + 1
        scored.append((fact_value(fact, newest) / (cost + 2), cost, fact))
        room -= cost
        if room < 0:
            break
    scored.sort(key=lambda s: -s[0])
    chosen: list[Fact] = []
    sources: dict[str, int] = {}
    names: set[tuple[str, str]] = set()
    taken = Shown()
    left = float(tokens)
    for _, cost, fact in scored:
        label = (fact.source, fact.name)
        if label in names:
            cost = counter.text(fact.value) + 1
        if fact.source not in sources:
            extra = sources[fact.source] = counter.text(f"[{fact.source}]") + 1
        else:
            extra = 0
        if cost + extra > left:
            if extra:
                del sources[fact.source]
            if left < 6:
                break
            continue
        if len(fact.value) < 40 and fact.value in taken:
            continue  # a longer fact shows it
        left -= cost + extra
        chosen.append(fact)
        if fact.name:
            names.add(label)
        if len(fact.value) > 12:
            taken.add(fact.value)
    return tuple(sorted(chosen, key=lambda f: (f.order, f.source, f.name)))
