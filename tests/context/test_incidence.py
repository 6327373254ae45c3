"""What a choice of texts says is the choice's own, and texts without words do no harm."""

from __future__ import annotations

from agentrm.context.incidence import Incidence, Unsaid

TEXTS = [("red", "kettle", "1"), ("red", "kettle", "2"), (), ("boat",)]


def test_two_choices_at_once_do_not_see_each_other() -> None:
    unsaid = Unsaid(Incidence.of(TEXTS), 0.3)
    one, other = unsaid.fresh(), unsaid.fresh()
    one.say(0)
    assert one.left[1] < other.left[1] == unsaid.total[1]


def test_what_is_said_twice_takes_nothing_twice() -> None:
    unsaid = Unsaid(Incidence.of(TEXTS), 0.3).fresh()
    unsaid.say(0)
    left = unsaid.left.copy()
    unsaid.say(1)
    unsaid.say(0)
    assert (unsaid.left == left).all() and (left > 0).all()


def test_texts_without_a_word_are_worth_next_to_nothing() -> None:
    words = Incidence.of([(), ()])
    assert not words.distance().size and words.mass(["red"]) == 0
    assert (Unsaid(words, 0.3).total < 1e-6).all()
