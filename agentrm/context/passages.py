"""How is a message cut into the passages that are judged, found and summarised one by one?

A short message is one passage. A long text is cut between sentences into passages of about 160 characters,
so that the one sentence that matters can stay while the rest goes. Passages are copies: their text stands
in the message to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrm.context.keyinfo import sentences_of
from agentrm.context.messages import Message, Opaque
from agentrm.context.predict import Passage

WHOLE = 600  # characters up to which a message is one passage
PIECE = 160
PAUSE_S = 1800.0  # a gap after which a conversation opens again
_PHOTO = re.compile(r"\[(?:photo|image|picture)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage and the index of its message in the list it came from; `whole` when it is all of its text."""

    message: int
    passage: Passage
    whole: bool


def pieces_of(messages: Sequence[Message], whole: int = WHOLE) -> list[Piece]:
    """The pieces of all messages in order. A message without text has none."""
    out: list[Piece] = []
    before: float | None = None
    for index, message in enumerate(messages):
        text = message.text.strip()
        opening = message.created is not None and (before is None or message.created - before > PAUSE_S)
        before = message.created if message.created is not None else before
        if not text:
            continue
        author = message.name or message.role
        media = any(isinstance(p, Opaque) for p in message.parts) or bool(_PHOTO.search(text))
        if len(text) <= whole:
            out.append(Piece(index, Passage(text, author, media, opening), True))
            continue
        for number, piece in enumerate(_cut(text)):
            out.append(Piece(index, Passage(piece, author, media, opening and number == 0), False))
    return out


def _cut(text: str) -> list[str]:
    out: list[str] = []
    held: list[str] = []
    size = 0
    for sentence in sentences_of(text):
        for start in range(0, len(sentence), 2 * PIECE):
            part = sentence[start : start + 2 * PIECE]
            if held and size + len(part) > PIECE:
                out.append("\n".join(held))
                held, size = [], 0
            held.append(part)
            size += len(part)
    if held:
        out.append("\n".join(held))
    return out
