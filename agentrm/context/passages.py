"""How is a message cut into the passages that are judged, found and summarised one by one?

A short message is one passage. A long text is cut between sentences into passages of about 160 characters,
so that the one sentence that matters can stay while the rest goes. A sentence that is said once shares no
passage with set phrases: they would go or stay together. Passages are copies: their text stands in the message
to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrm.context.incidence import WordNumbers
from agentrm.context.keyinfo import sentences_of
from agentrm.context.messages import Message, Opaque
from agentrm.context.phrasing import novelty
from agentrm.context.predict import Passage
from agentrm.context.wordstats import words_of

WHOLE = 600  # characters up to which a message is one passage
PIECE = 160
PAUSE_S = 1800.0  # a gap after which a conversation opens again
UNLIKE = 0.2  # of novelty, between neighbours that are not put into one passage
_PHOTO = re.compile(r"\[(?:photo|image|picture)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage and the index of its message in the list it came from, -1, -2, ... for what earlier notes kept. `whole`
    when it is all of its text; `novelty` as in `phrasing`, among all texts that are cut at once; `words` by number."""

    message: int
    passage: Passage
    whole: bool
    novelty: float
    words: list[int]


def pieces_of(
    messages: Sequence[Message], kept: Sequence[Passage] = (), whole: int = WHOLE, numbers: WordNumbers | None = None
) -> list[Piece]:
    """The pieces of all messages in order, after those that earlier notes `kept`. A message without text has none.
    Words that have no number in `numbers` yet get one."""
    numbers = WordNumbers() if numbers is None else numbers
    units = [(-1 - number, passage, True) for number, passage in enumerate(kept)]
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
            units.append((index, Passage(text, author, media, opening), True))
            continue
        for number, part in enumerate(_parts(text)):
            units.append((index, Passage(part, author, media, opening and number == 0), False))
    words = [numbers.of(words_of(passage.text)) for _, passage, _ in units]
    news = novelty(words).tolist()
    return _joined([Piece(*unit, new, own) for unit, new, own in zip(units, news, words, strict=True)])


def _parts(text: str) -> list[str]:
    """The sentences, those of more than two passages cut."""
    return [s[start : start + 2 * PIECE] for s in sentences_of(text) for start in range(0, len(s), 2 * PIECE)]


def _joined(parts: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one message in one piece of up to about 160 characters, where they are alike in novelty."""
    out: list[Piece] = []
    for part in parts:
        last = out[-1] if out else None
        if (
            last is None
            or part.whole
            or last.message != part.message
            or len(last.passage.text) + len(part.passage.text) > PIECE
            or abs(last.novelty - part.novelty) > UNLIKE
        ):
            out.append(part)
            continue
        text = f"{last.passage.text}\n{part.passage.text}"
        share = len(part.passage.text) / len(text)
        new = (1 - share) * last.novelty + share * part.novelty
        passage = replace(last.passage, text=text)
        out[-1] = replace(last, passage=passage, novelty=new, words=last.words + part.words)
    return out
