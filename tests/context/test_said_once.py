"""What is said once outlasts set phrases: how texts are judged by their phrasing, cut by it, and kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from agentrm.context import phrasing
from agentrm.context.compact import Compactor
from agentrm.context.incidence import WordNumbers
from agentrm.context.messages import Message, make
from agentrm.context.passages import pieces_of
from agentrm.context.phrasing import fresh_share
from agentrm.context.wordstats import words_of
from agentrm.evaluation.plain_counter import PlainCounter

FORMS = (
    "Room {n} was cleaned by the {who} team and the {what} is in place.",
    "The {what} of room {n} will be looked at again by the {who} team.",
    "Nothing else was found in room {n} apart from the usual {what}.",
    "The {who} team asks for one more {what} on the floor of room {n}.",
)
ONCE = (
    "My uncle taught the parrot to whistle our anthem backwards.",
    "Marguerite hides her letters beneath the third stair.",
    "Rain always makes the old elevator stop halfway.",
    "They buried a tin of marbles where the swing used to hang.",
    "Tobias never eats anything that has been near saffron.",
    "The mayor owes Ludmila eleven jars of plum jam.",
)


def novelty(texts: Sequence[str]) -> Any:
    numbers = WordNumbers()
    return phrasing.novelty([numbers.of(words_of(text)) for text in texts])


def filled(chance: random.Random) -> str:
    who, what = chance.choice(("early", "late", "night")), chance.choice(("towel", "lamp", "kettle", "blanket"))
    return chance.choice(FORMS).format(n=chance.randrange(100, 400), who=who, what=what)


def report(chance: random.Random, number: int, said: str | None) -> Message:
    """A long message of filled-in forms, with what is said once among them."""
    sentences = [filled(chance) for _ in range(25)]
    if said is not None:
        sentences.insert(chance.randrange(len(sentences) + 1), said)
    return make("user" if number % 2 == 0 else "assistant", " ".join(sentences), id=f"m{number}")


def test_a_form_is_not_new_whatever_it_is_filled_with(seed):
    chance = random.Random(seed)
    texts = [filled(chance) for _ in range(300)] + list(ONCE)
    news = novelty(texts)
    assert news[:300].max() < 0.7 < news[300:].min()
    assert (fresh_share(news)[300:] == 1).all() and fresh_share(news)[:300].max() < 0.9


def test_novelty_of_little_or_nothing():
    assert novelty([]).tolist() == []
    assert novelty([""]).tolist() == [1.0]
    assert novelty(["", "hello", "?!"]).shape == (3,)
    assert novelty(["ping"] * 50).max() < 0.3  # a word alone may be a set phrase too
    assert fresh_share([]).tolist() == []


def test_what_is_said_once_shares_no_passage_with_set_phrases(seed):
    chance = random.Random(seed)
    messages = [report(chance, n, ONCE[n // 5] if n % 5 == 0 else None) for n in range(30)]
    numbers = WordNumbers()
    pieces = pieces_of(messages, numbers=numbers)
    assert [p.words for p in pieces] == [numbers.of(words_of(p.passage.text)) for p in pieces]
    passages = [p.passage.text for p in pieces]
    assert set(ONCE) <= set(passages)
    words = " ".join(" ".join(passages).split())
    assert words == " ".join(m.text for m in messages)  # nothing is lost or moved


def test_a_text_of_one_kind_is_cut_by_length_alone():
    text = " ".join(f"{a} {b} {c} {d}." for a, b, c, d in zip(*[iter(map(str, range(1000, 1400)))] * 4, strict=True))
    sizes = [len(p.passage.text) for p in pieces_of([make("user", text, id="m")])]
    assert min(sizes[:-1]) > 120 and max(sizes) <= 320


def test_what_is_said_once_outlasts_compaction_after_compaction(seed):
    chance = random.Random(seed)
    places = sorted(chance.sample(range(110), len(ONCE)))
    compactor, counter = Compactor(PlainCounter(), embedder=None), PlainCounter()
    context: list[Message] = []
    compactions = 0
    for number in range(120):
        said = ONCE[places.index(number)] if number in places else None
        context.append(report(chance, number, said))
        if counter.messages(context) > 8000:
            context = list(compactor.compact(context, 5000).messages)
            compactions += 1
    shown = "\n".join(m.text for m in context)
    assert compactions > 5
    assert [s for s in ONCE if s not in shown] == []
