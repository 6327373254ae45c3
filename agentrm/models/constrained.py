"""Lets a model write only what a choice or a schema allows.

What is fixed is written for it; where there is a choice, tokens are taken in the model's own order and the
first one that keeps the text valid wins. The text is valid at every end, however weak the model: free parts
are bounded, and when the budget is used up each of them is closed at the first valid place.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrm.models.schema import (
    FRACTION_DIGITS,
    INTEGER_DIGITS,
    Either,
    Fields,
    Items,
    Literals,
    Node,
    Number,
    Text,
)
from agentrm.models.sequence import Sampler, TokenSequence
from agentrm.models.tokenizer import Tokenizer

_ESCAPABLE = '"\\/bfnrt'
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]*))?")


@dataclass(slots=True)
class ConstrainedWriter:
    """Appends valid text to one sequence. `budget` is in tokens and bounds what the model chooses freely.

    Fixed text is collected and becomes tokens together with what follows it, as it would in running text.
    """

    sequence: TokenSequence
    tokenizer: Tokenizer
    sampler: Sampler
    budget: int
    _fixed: str = ""

    def literal(self, text: str) -> str:
        """Writes fixed text; costs no step of the model."""
        self._fixed += text
        return text

    def flush(self) -> None:
        """Turns fixed text that is still waiting into tokens of the sequence."""
        if self._fixed:
            self.sequence.append(self.tokenizer.encode(self._fixed))
            self._fixed = ""

    def choose(self, options: Sequence[str]) -> str:
        """Writes one of the options, which must be distinct, and returns it. Asks the model only where
        they part.
        """
        if len(options) == 1:
            return self.literal(options[0])
        live = [(self.tokenizer.encode(self._fixed + option), option) for option in options]
        self._fixed = ""
        position = 0
        while len(live) > 1:
            nexts = {ids[position] for ids, _ in live if len(ids) > position}
            whole = [entry for entry in live if len(entry[0]) == position]
            if len(nexts) == 1 and not whole:
                token: int | None = next(iter(nexts))
            else:
                token = self._first_of(nexts, may_end=bool(whole))
            if token is None:
                live = whole[:1]
                break
            self._take(token)
            live = [entry for entry in live if entry[0][position : position + 1] == [token]]
            position += 1
        ids, option = live[0]
        self.sequence.append(ids[position:])
        return option

    def _first_of(self, tokens: set[int], *, may_end: bool) -> int | None:
        for token in self._ranked():
            if token in tokens:
                return token
            if may_end and not (self.tokenizer.token_bytes[token] or b"")[:1].isalnum():
                return None  # the model goes on with something else than the rest of a longer option
        raise AssertionError("ranked holds every token")

    def value(self, node: Node) -> Iterator[str]:
        """Writes one JSON value of that shape; yields its text in fragments as they come to be."""
        if isinstance(node, Literals):
            yield self.choose(node.texts)
        elif isinstance(node, Text):
            yield from self._text(node)
        elif isinstance(node, Number):
            yield from self._number(node)
        elif isinstance(node, Items):
            yield from self._items(node)
        elif isinstance(node, Fields):
            yield from self._fields(node)
        else:
            yield from self.value(self._branch(node))

    def _ranked(self) -> Iterator[int]:
        self.flush()
        return self.sequence.ranked(self.sampler)

    def _take(self, token: int) -> None:
        self.sequence.append([token])
        self.budget -= 1

    def _branch(self, node: Either) -> Node:
        for token in self._ranked():
            first = (self.tokenizer.token_bytes[token] or b"").strip()[:1].decode("ascii", "ignore")
            for branch in node.branches:
                if first and first in branch.openers:
                    return branch
        return node.branches[0]

    def _fields(self, node: Fields) -> Iterator[str]:
        yield self.literal("{")
        at, separator = 0, ""
        while True:
            nexts: dict[str, int] = {}
            for i in range(at, len(node.fields)):
                if node.fields[i].required or self.budget > 0:
                    nexts[f"{separator}{json.dumps(node.fields[i].name)}: "] = i
                if node.fields[i].required:
                    break
            else:
                nexts["}"] = len(node.fields)
            chosen = self.choose(list(nexts))
            yield chosen
            if chosen == "}":
                return
            at, separator = nexts[chosen] + 1, ", "
            yield from self.value(node.fields[at - 1].node)

    def _items(self, node: Items) -> Iterator[str]:
        yield self.literal("[")
        for count in range(node.most):
            if count >= node.fewest:
                # An empty array is worth a choice of its own; so is every item after the fewest.
                if self.budget <= 0 or not self._wants_item(node, first=count == 0):
                    break
            if count:
                yield self.literal(", ")
            yield from self.value(node.item)
        yield self.literal("]")

    def _wants_item(self, node: Items, *, first: bool) -> bool:
        for token in self._ranked():
            opener = (self.tokenizer.token_bytes[token] or b"").strip()[:1].decode("ascii", "ignore")
            if opener == "]" or token in self.tokenizer.end_ids:
                return False
            if opener and opener in (node.item.openers if first else ","):
                return True
        return False

    def _text(self, node: Text) -> Iterator[str]:
        yield self.literal('"')
        limit = max(1, self.budget // 2)  # a long first string leaves something for the next
        state = _StringState()
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        spent = 0
        while node.longest is None or state.length < node.longest or not state.whole:
            out_of_budget = spent >= limit or self.budget <= 0
            if out_of_budget and state.whole and state.length >= node.shortest:
                break
            token, following = self._next_in_string(node, state, state.length + 1 if out_of_budget else None)
            if following is None:
                break
            self._take(token)
            spent += 1
            state = following
            if text := decoder.decode(self.tokenizer.token_bytes[token] or b""):
                yield text
        yield self.literal('"')

    def _next_in_string(self, node: Text, state: _StringState, at_most: int | None) -> tuple[int, _StringState | None]:
        """The next token and the state after it; no state means that the string ends here."""
        for token in self._ranked():
            piece = self.tokenizer.token_bytes[token] or b""
            if (piece.startswith(b'"') and not state.escaped) or token in self.tokenizer.end_ids:
                if state.whole and state.length >= node.shortest:
                    return token, None
                continue
            following = state.after(piece) if piece else None
            if following is None:
                continue
            if node.longest is not None and following.length + (not following.whole) > node.longest:
                continue
            if at_most is not None and following.length > at_most:
                continue
            return token, following
        raise AssertionError("every byte has a token, so a string can always go on or end")

    def _number(self, node: Number) -> Iterator[str]:
        written = ""
        while not (self.budget <= 0 and number_complete(written, node)):
            token = self._next_in_number(node, written)
            if token is None:
                return
            piece = (self.tokenizer.token_bytes[token] or b"").decode("ascii")
            self._take(token)
            written += piece
            yield piece

    def _next_in_number(self, node: Number, written: str) -> int | None:
        complete = number_complete(written, node)
        for token in self._ranked():
            piece = self.tokenizer.token_bytes[token] or b""
            if piece.isascii() and piece.strip(b"-.0123456789") == b"" and piece:
                if number_viable(written + piece.decode("ascii"), node):
                    return token
            elif complete:
                return None
        return None


@dataclass(frozen=True, slots=True)
class _StringState:
    """Where the inside of a JSON string stands: characters so far, an open escape, bytes of an open
    character.
    """

    length: int = 0
    escaped: bool = False
    partial: bytes = b""

    @property
    def whole(self) -> bool:
        return not self.escaped and not self.partial

    def after(self, piece: bytes) -> _StringState | None:
        """The state after these bytes, None if they cannot stand here."""
        raw = self.partial + piece
        try:
            text, used = codecs.utf_8_decode(raw, "strict", False)
        except UnicodeDecodeError:
            return None
        length, escaped = self.length, self.escaped
        for character in text:
            if escaped:
                if character not in _ESCAPABLE:
                    return None
                escaped = False
                length += 1
            elif character == "\\":
                escaped = True
            elif character == '"' or character < " ":
                return None
            else:
                length += 1
        partial = raw[used:]
        if partial and (escaped or not _completable(partial)):
            return None
        return _StringState(length, escaped, partial)


def _completable(partial: bytes) -> bool:
    """Whether some character begins so. The decoder notices a surrogate only at its last byte, too late
    here.
    """
    if len(partial) == 1:
        return True
    size = 3 if partial[0] < 0xF0 else 4
    try:
        partial.ljust(size, b"\x80").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def number_complete(text: str, node: Number) -> bool:
    """Whether the text is a whole JSON number in the node's range."""
    found = _NUMBER.fullmatch(text)
    if not found or found[3] == "":
        return False
    if found[3] is not None and node.scale == 1:
        return False
    low, high = _completions(found, node.scale, more_digits=0)
    return node.low <= (high if found[1] else low) <= node.high


def number_viable(text: str, node: Number) -> bool:
    """Whether some number in the node's range begins with the text."""
    if text == "-":
        return node.low < 0
    found = _NUMBER.fullmatch(text)
    if not found or len(found[2]) > INTEGER_DIGITS or len(found[3] or "") > FRACTION_DIGITS:
        return False
    if found[3] is not None and node.scale == 1:
        return False
    more = 0 if found[2] == "0" or found[3] is not None else INTEGER_DIGITS - len(found[2])
    ranges = (_completions(found, node.scale, digits) for digits in range(more + 1))
    return any(low <= node.high and high >= node.low for low, high in ranges)


def _completions(found: re.Match[str], scale: int, more_digits: int) -> tuple[int, int]:
    """Least and greatest number, in steps of 1/scale, that begins so and has that many more integer
    digits.
    """
    sign, whole, fraction = found[1], int(found[2]) * 10**more_digits, found[3]
    if fraction is None:
        low, high = whole * scale, (whole + 10**more_digits) * scale - 1
    else:
        step = scale // 10 ** len(fraction)
        low = whole * scale + int(fraction or 0) * step
        high = low + step - 1
    return (-high, -low) if sign else (low, high)
