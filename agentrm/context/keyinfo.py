"""What in a message must survive word for word?

`extract` finds it by code, no model: opaque strings with what they name, and sentences of a kind that later
work depends on. `merge` brings the finds of many messages together: the same value once (with its newest
source), a value that a later one replaced is marked. Every fact carries the id of the message it came from,
so that the whole can be recalled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from agentrm.context.keyinfo_patterns import (
    HEAD,
    KINDS,
    LONGEST_NAME,
    MONTH_DATE,
    MONTHS,
    NAME,
    OPAQUE,
    REST,
    SENTENCE,
    SEPARATOR,
    SIGNS,
    SPACED,
    VALUE,
)
from agentrm.context.messages import Message, Text, ToolResult

_MAX_SCAN = 200_000  # characters of one message that are searched; a longer one keeps its head and tail
_MAX_PER_MESSAGE = 400
_MAX_SENTENCE = 400
_JSON_KEY = re.compile(r"[\"']([A-Za-z_][\w-]*)[\"']\s*:")
_ARTICLES = re.compile(
    r"^(?:the|a|an|our|my|your|this|that|its|and|or|but|so|then|note|new)\s+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to keep. `value` is copied from the text to the byte; `name` says what it is, "" if
    nothing did.

    `kind` is a group name of `keyinfo_patterns.OPAQUE`, `named`, or a sentence kind. `source` is a message
    id, `count` how often the value was seen, `used` whether the agent itself wrote it (a call's argument,
    its own text). `superseded` means that a later fact of the same name has another value.
    """

    kind: str
    value: str
    name: str
    source: str
    order: int = 0
    count: int = 1
    used: bool = False
    superseded: bool = False

    @property
    def line(self) -> str:
        """`name: value`, as it is shown; superseded values say so."""
        shown = f"{self.name}: {self.value}" if self.name else self.value
        return f"{shown} (superseded)" if self.superseded else shown

    def to_json(self) -> list[Any]:
        return [
            self.kind,
            self.value,
            self.name,
            self.source,
            self.order,
            self.count,
            self.used,
            self.superseded,
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Fact:
        return cls(*data)


def opaque_strings(text: str) -> list[tuple[str, str]]:
    """`(kind, string)` for each opaque string of the text, repeats included: numbers and dates of several
    words first, the others in text order.
    """
    out: list[tuple[str, str]] = []
    patterns = (*SPACED, MONTH_DATE) if any([month in text for month in MONTHS]) else SPACED
    for pattern in patterns:
        for match in pattern.finditer(text):
            kind = match.lastgroup
            assert kind is not None
            out.append((kind, match.group()))
    for chunk in text.split():
        bare = chunk.strip(_EDGES)
        if bare.isalpha() and (bare.islower() or bare[1:].islower() or len(bare) < 2):
            continue  # an ordinary word: most of any text
        found = _memo.get(chunk)
        if found is None:
            found = _chunk_strings(chunk)
            if len(chunk) <= 80:
                if len(_memo) >= _MEMO_CHUNKS:
                    _memo.clear()
                _memo[chunk] = found
        out.extend(found)
    return out


_IDS = ("uuid", "hash", "ticket", "identifier", "bignumber")
_EDGES = ".,;:!?()[]{}<>\"'`*-=|#"
_MEMO_CHUNKS = 50_000
_memo: dict[str, tuple[tuple[str, str], ...]] = {}


def _chunk_strings(chunk: str) -> tuple[tuple[str, str], ...]:
    out: list[tuple[str, str]] = []
    start = 0
    while match := OPAQUE.search(chunk, start):
        kind, value, end = match.lastgroup, match.group(), match.end()
        assert kind is not None
        if kind in ("url", "path", "winpath"):
            value = value.rstrip(".,:;")
        elif kind in _IDS:  # half an id is none
            before, behind = HEAD.search(chunk, start, match.start()), REST.match(chunk, end)
            end = behind.end() if behind else end
            value = chunk[before.start() if before else match.start() : end]
        start = end
        if len(value) > 1:
            out.append((kind, value))
    return tuple(out)


def extract(message: Message, order: int = 0) -> list[Fact]:
    """The facts of one message, in text order, at most 400. `order` is its place in the session."""
    facts: dict[tuple[str, str], Fact] = {}
    spoken = message.role in ("user", "system", "assistant")
    for part in message.parts:
        if isinstance(part, Text):
            _scan(part.text, message, order, spoken, facts)
        elif isinstance(part, ToolResult):
            _scan(part.text, message, order, False, facts)
    for call in message.calls:
        arguments = call.arguments
        text = arguments if isinstance(arguments, str) else repr(dict(arguments))
        for kind, value in opaque_strings(text.replace("\\n", "\n").replace('\\"', '"')):
            _add(facts, Fact(kind, value, "", message.id, order, 1, True))
    return list(facts.values())[:_MAX_PER_MESSAGE]


def _scan(text: str, message: Message, order: int, spoken: bool, facts: dict[tuple[str, str], Fact]) -> None:
    if len(text) > _MAX_SCAN:
        text = f"{text[: _MAX_SCAN // 2]}\n{text[-_MAX_SCAN // 2 :]}"
    own = message.role == "assistant"
    keys = set(_JSON_KEY.findall(text)) if '":' in text or "':" in text else set()
    named = _named(text) if spoken or len(text) < 4000 else {}
    for kind, value in opaque_strings(text):
        if value in keys and not any(c.isdigit() for c in value):  # a field's name, not what it holds
            continue
        _add(facts, Fact(kind, value, named.pop(value, ""), message.id, order, 1, own))
    if spoken:
        for value, name in named.items():
            if len(value) <= 40 and any(c.isupper() or c.isdigit() for c in value):
                _add(facts, Fact("named", value, name, message.id, order, 1, own))
        for kind, sentence in sentences_of_kind(text, question=message.role == "user"):
            _add(facts, Fact(kind, sentence, "", message.id, order, 1, own))


def _add(facts: dict[tuple[str, str], Fact], fact: Fact) -> None:
    key = (fact.value, "")
    known = facts.get(key)
    if known is None:
        facts[key] = fact
    else:
        facts[key] = replace(
            known, count=known.count + 1, used=known.used or fact.used, name=known.name or fact.name
        )


def _named(text: str) -> dict[str, str]:
    """value -> the words before it that name it."""
    out: dict[str, str] = {}
    start = 0
    while separator := SEPARATOR.search(text, start):
        before = NAME.search(text, max(start, separator.start() - LONGEST_NAME), separator.start())
        behind = VALUE.match(text, separator.end()) if before is not None else None
        if before is None or behind is None:
            start = separator.start() + 1
            continue
        start = behind.end()
        name, value = _ARTICLES.sub("", before["name"]).strip(), behind["value"].strip().rstrip(".,:;!?")
        if not name or not value:
            continue
        out.setdefault(value, name)
        for _, inner in opaque_strings(value):
            out.setdefault(inner, name)
    return out


def sentences_of(text: str) -> list[str]:
    """The sentences and lines of a text, stripped, none empty; their words are copied unchanged."""
    return [s for s in (m.group().strip() for m in SENTENCE.finditer(text)) if s]


def sentences_of_kind(text: str, *, question: bool) -> list[tuple[str, str]]:
    """`(kind, sentence)` for the sentences that a later turn may depend on."""
    out: list[tuple[str, str]] = []
    if len(text) > 20_000:
        return out
    kinds = [(kind, KINDS[kind]) for kind in _possible(text, KINDS)]
    if not kinds and not (question and "?" in text):
        return out
    for sentence in sentences_of(text):
        if not 8 <= len(sentence) <= _MAX_SENTENCE:
            continue
        for kind, pattern in kinds:
            if pattern.search(sentence):
                out.append((kind, sentence))
                break
        else:
            if question and sentence.endswith("?"):
                out.append(("question", sentence))
    return out


def is_of_kind(text: str, *kinds: str) -> bool:
    """Whether the text holds anything of one of the sentence kinds."""
    return any([KINDS[kind].search(text) for kind in _possible(text, kinds)])


def _possible(text: str, kinds: Iterable[str]) -> list[str]:
    """The kinds that the text may hold; the others it can't."""
    low = text.casefold()
    return [kind for kind in kinds if any([sign in low for sign in SIGNS[kind]])]


def merge(facts: Iterable[Fact]) -> list[Fact]:
    """Each value once, in the order of its newest source; replaced values marked.

    A value is replaced when a person or the agent later gave another value under the same name. Results of
    tools do not replace each other: lists repeat their column names.
    """
    by_value: dict[str, Fact] = {}
    for fact in facts:
        known = by_value.pop(fact.value, None)
        if known is None:
            by_value[fact.value] = fact
            continue
        newest = fact if fact.order >= known.order else known
        by_value[fact.value] = replace(
            newest,
            name=newest.name or known.name or fact.name,
            count=known.count + fact.count,
            used=known.used or fact.used,
            superseded=known.superseded and fact.superseded,
        )
    newest_of: dict[str, Fact] = {}
    for fact in by_value.values():
        if fact.kind == "named" or (
            fact.name and fact.kind in ("number", "money", "date", "version", "address")
        ):
            key = fact.name.lower()
            if key not in newest_of or fact.order > newest_of[key].order:
                newest_of[key] = fact
    out = []
    for fact in by_value.values():
        key = fact.name.lower()
        latest = newest_of.get(key) if key else None
        replaced = latest is not None and latest.value != fact.value and latest.order > fact.order
        relevant = fact.kind == "named" or fact.kind in ("number", "money", "date", "version", "address")
        out.append(replace(fact, superseded=True) if replaced and relevant else fact)
    return sorted(out, key=lambda f: f.order)
