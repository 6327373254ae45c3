"""Streaming: the pieces are the answer, stops and cancels hold at a token, threads do not disturb each
other.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrm.errors import ConfigError
from agentrm.models import (
    DeviceUnavailable,
    GenerationCancelled,
    LocalModel,
    Piece,
    PromptTooLong,
    UnknownModel,
    Usage,
)
from agentrm.models.generation import StopStrings
from agentrm.models.sequence import PREFILL_CHUNK, Sampler, TokenSequence, cache_argument

ASK = [{"role": "user", "content": "Tell me a story"}]


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def greedy_by_hand(model: LocalModel, prompt: list[int], steps: int) -> list[int]:
    """Without a cache: the whole sequence through the model for every token."""
    torch = pytest.importorskip("torch")
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(steps):
            tokens.append(int(model._loaded.weights(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_the_cache_changes_nothing_about_the_tokens(tiny: LocalModel) -> None:
    prompt = "x" * (PREFILL_CHUNK + 40)  # more than one chunk
    tokens = greedy_by_hand(tiny, tiny.tokenizer.encode(prompt), 24)
    assert not set(tokens) & tiny.tokenizer.end_ids
    pieces = list(tiny.generate(prompt, max_new_tokens=24))
    assert text_of(pieces) == tiny.tokenizer.decode(tokens)
    assert pieces[-1].usage == Usage(len(prompt), 24, "length")


def test_only_the_last_piece_carries_the_usage(tiny: LocalModel) -> None:
    pieces = list(tiny.generate(ASK, max_new_tokens=12))
    assert [piece.usage is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.input_tokens == tiny.count_tokens(ASK)


def test_a_seed_repeats_an_answer_and_another_one_changes_it(tiny: LocalModel) -> None:
    def answer(seed: int | None) -> str:
        return text_of(tiny.generate(ASK, max_new_tokens=30, temperature=1.0, seed=seed))

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(5)}) == 5
    assert answer(None) != answer(None)


def test_generating_leaves_the_global_random_generator_alone(tiny: LocalModel) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state()
    text_of(tiny.generate(ASK, max_new_tokens=5, temperature=1.0))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_end_of_a_turn_ends_the_answer_and_counts_as_a_token(tiny: LocalModel) -> None:
    ends = (list(tiny.generate(ASK, max_new_tokens=4000, temperature=2.0, seed=seed))[-1].usage for seed in range(3))
    for usage in ends:
        assert usage is not None
        assert usage.finish_reason == "stop"
        assert usage.output_tokens < 4000


def test_a_cancel_takes_effect_at_the_next_token(tiny: LocalModel) -> None:
    event = threading.Event()
    pieces = tiny.generate("abc", max_new_tokens=500, cancelled=event.is_set)
    shown = [next(pieces), next(pieces)]
    event.set()
    rest = list(pieces)
    assert len(rest) == 1
    usage = rest[0].usage
    assert usage is not None
    assert usage.finish_reason == "cancelled"
    # Bytes of an unfinished character are held back, so there may be more tokens than pieces, never fewer.
    assert len(shown) <= usage.output_tokens < 20


def test_a_cancel_is_seen_between_the_chunks_of_a_long_prompt(tiny: LocalModel) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    pieces = list(tiny.generate("x" * PREFILL_CHUNK * 8, cancelled=cancelled))
    assert asked == 3
    assert [piece.usage for piece in pieces] == [Usage(PREFILL_CHUNK * 8, 0, "cancelled")]


def test_a_dropped_stream_releases_its_cache(tiny: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    original = TokenSequence.__init__

    class Tracked(TokenSequence):
        __slots__ = ("__weakref__",)

        def __init__(self, *args: Any) -> None:
            original(self, *args)
            made.append(weakref.ref(self))

    monkeypatch.setattr("agentrm.models.local.TokenSequence", Tracked)
    pieces = tiny.generate(ASK, max_new_tokens=50)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    del pieces
    gc.collect()
    assert [reference() for reference in made] == [None]


def test_threads_on_one_model_get_what_they_would_get_alone(tiny: LocalModel) -> None:
    def answer(seed: int) -> str:
        ask = [{"role": "user", "content": f"Question {seed}" * (seed + 1)}]
        return text_of(tiny.generate(ask, max_new_tokens=25, temperature=1.0, seed=seed))

    alone = [answer(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(answer, range(8)))
    assert together == alone


def test_a_prompt_that_fills_the_context_is_refused_and_one_token_less_is_answered(tiny: LocalModel) -> None:
    with pytest.raises(PromptTooLong, match="4096"):
        tiny.generate("x" * tiny.context)
    pieces = list(tiny.generate("x" * (tiny.context - 1)))
    assert pieces[-1].usage == Usage(tiny.context - 1, 1, "length")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": "END"}, "stop"),
    ],
)
def test_wrong_options_fail_at_the_call_and_name_the_key(tiny: LocalModel, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        tiny.generate(ASK, **wrong)


def test_a_stop_string_is_cut_off_wherever_it_begins(tiny: LocalModel) -> None:
    whole = text_of(tiny.generate(ASK, max_new_tokens=40))
    for at in range(1, 20):
        stop = whole[at : at + 3]
        pieces = list(tiny.generate(ASK, max_new_tokens=40, stop=[stop, "never found"]))
        assert text_of(pieces) == whole[: whole.index(stop)]
        usage = pieces[-1].usage
        assert usage is not None
        assert usage.finish_reason == "stop"


@given(st.lists(st.text("ab", max_size=4)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_fragments_as_they_would_cut_the_whole(fragments: list[str], stops: list[str]) -> None:
    filtered = StopStrings(stops)
    shown = ""
    for fragment in fragments:
        shown += filtered.feed(fragment)
        if filtered.found:
            break
    shown += "" if filtered.found else filtered.rest()
    whole = "".join(fragments)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert filtered.found == bool(ends)
    if not ends:
        assert shown == whole
    else:  # cut at a stop string; which of two overlapping ones came first depends on the fragments
        assert shown in [whole[: whole.find(stop)] for stop in stops if stop in whole]


def test_rewinding_a_sequence_gives_the_logits_it_had(tiny: LocalModel) -> None:
    torch = pytest.importorskip("torch")
    loaded = tiny._loaded
    sequence = TokenSequence(loaded.weights, cache_argument(loaded.weights), loaded.device, [1, 2, 3], lambda: False)
    before = sequence.logits()
    scores = sequence.log_probabilities([[5], [5, 6], [7, 8, 9]])
    sequence.append([10, 11, 12])
    sequence.logits()
    sequence.rewind(3)
    assert torch.allclose(sequence.logits(), before, atol=1e-5)
    assert sequence.log_probabilities([[5], [5, 6], [7, 8, 9]]) == pytest.approx(scores, abs=1e-4)
    assert scores[0] == pytest.approx(float(before.log_softmax(-1)[5]), abs=1e-5)
    assert scores[1] < scores[0]


def test_the_argument_for_the_cache_is_taken_from_the_signature() -> None:
    torch = pytest.importorskip("torch")

    class New(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: object, cache: object = None, past_key_values: object = None) -> None: ...

    class Old(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: object, past_key_values: object = None, **kwargs: object) -> None: ...

    assert cache_argument(New()) == "cache"
    assert cache_argument(Old()) == "past_key_values"


def test_sampling_follows_the_distribution_and_ranked_holds_each_token_once() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampler = Sampler(temperature=0.5, seed=7)
    counts = torch.bincount(torch.tensor([sampler.pick(logits) for _ in range(4000)]), minlength=4) / 4000
    assert torch.allclose(counts, (logits / 0.5).softmax(-1), atol=0.03)
    assert sorted(sampler.ranked(torch.randn(500))) == list(range(500))
    assert list(Sampler(0.0, None).ranked(logits)) == [2, 1, 0, 3]


def test_devices_and_types_that_are_not_there_are_refused_by_name(tiny: LocalModel) -> None:
    with pytest.raises(DeviceUnavailable, match="cuda:93"):
        LocalModel.load("tiny-random", device="cuda:93")
    with pytest.raises(ConfigError, match="abacus"):
        LocalModel.load("tiny-random", device="abacus")
    with pytest.raises(ConfigError, match="int3"):
        LocalModel.load("tiny-random", device="cpu", dtype="int3")
    with pytest.raises(ConfigError, match="threads"):
        LocalModel.load("tiny-random", device="cpu", threads=0)
    with pytest.raises(UnknownModel, match="smollm2-135m"):
        LocalModel.load("no-such-model", device="cpu")


def test_equal_loads_share_their_weights_as_long_as_they_are_used(tiny: LocalModel) -> None:
    first = LocalModel.shared("tiny-random", device="cpu")
    assert LocalModel.shared("tiny-random", device="cpu") is first
    assert LocalModel.shared("tiny-random", device="cpu", dtype="bfloat16") is not first


def test_every_type_of_weights_generates(tiny: LocalModel) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        model = LocalModel.load("tiny-random", device="cpu", dtype=dtype)
        assert model.dtype == dtype
        assert list(model.generate(ASK, max_new_tokens=3))[-1].usage is not None


def test_a_cancelled_choice_is_an_error(tiny: LocalModel) -> None:
    with pytest.raises(GenerationCancelled):
        tiny.choose(ASK, ["a", "b"], cancelled=lambda: True)


@pytest.mark.model
def test_the_real_model_answers_in_words_and_ends_its_turn(smollm2: LocalModel) -> None:
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    pieces = list(smollm2.generate(ask, max_new_tokens=40))
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.input_tokens == smollm2.count_tokens(ask) == 37
    assert usage.finish_reason == "stop"
    assert text_of(pieces).isprintable()
