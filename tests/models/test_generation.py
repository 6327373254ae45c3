"""Streaming: the pieces are the answer, stops and cancels hold at a token, threads do not disturb each
other.
"""

from __future__ import annotations

import gc
import threading
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
    LocalEngine,
    Piece,
    PromptTooLong,
    UnknownModel,
    Usage,
)
from agentrm.models.generation import StopStrings
from agentrm.models.sequence import Sampler

CHUNK = 256
ASK = [{"role": "user", "content": "Tell me a story"}]


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def greedy_by_hand(model: LocalEngine, prompt: list[int], steps: int) -> list[int]:
    """Without a cache: the whole sequence through the model for every token."""
    torch = pytest.importorskip("torch")
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(steps):
            tokens.append(int(model._loaded.weights(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_the_cache_changes_nothing_about_the_tokens(tiny: LocalEngine) -> None:
    prompt = "x" * (CHUNK + 40)  # more than one chunk
    tokens = greedy_by_hand(tiny, tiny.tokenizer.encode(prompt), 24)
    assert not set(tokens) & tiny.tokenizer.end_ids
    pieces = list(tiny.generate(prompt, max_new_tokens=24))
    assert text_of(pieces) == tiny.tokenizer.decode(tokens)
    assert pieces[-1].usage == Usage(len(prompt), 24, "length")


def test_only_the_last_piece_carries_the_usage(tiny: LocalEngine) -> None:
    pieces = list(tiny.generate(ASK, max_new_tokens=12))
    assert [piece.usage is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.input_tokens == tiny.count_tokens(ASK)


def test_a_seed_repeats_an_answer_and_another_one_changes_it(tiny: LocalEngine) -> None:
    def answer(seed: int | None) -> str:
        return text_of(tiny.generate(ASK, max_new_tokens=30, temperature=1.0, seed=seed))

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(5)}) == 5
    assert answer(None) != answer(None)


def test_generating_leaves_the_global_random_generator_alone(tiny: LocalEngine) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state()
    text_of(tiny.generate(ASK, max_new_tokens=5, temperature=1.0))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_end_of_a_turn_ends_the_answer_and_counts_as_a_token(tiny: LocalEngine) -> None:
    ends = (list(tiny.generate(ASK, max_new_tokens=4000, temperature=2.0, seed=seed))[-1].usage for seed in range(3))
    for usage in ends:
        assert usage is not None
        assert usage.finish_reason == "stop"
        assert usage.output_tokens < 4000


def test_a_cancel_takes_effect_at_a_token_boundary(tiny: LocalEngine) -> None:
    written = 0

    def cancelled() -> bool:
        nonlocal written
        written += 1
        return written > 10

    pieces = list(tiny.generate("abc", max_new_tokens=500, cancelled=cancelled))
    usage = pieces[-1].usage
    assert usage is not None
    assert (usage.finish_reason, usage.output_tokens) == ("cancelled", 10)
    assert text_of(pieces) == text_of(tiny.generate("abc", max_new_tokens=10))


def test_a_cancel_is_seen_between_the_chunks_of_a_long_prompt(tiny: LocalEngine) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    before = tiny.statistics()[0].fed_tokens
    pieces = list(tiny.generate("xy" * CHUNK * 4, cancelled=cancelled))
    assert asked == 3
    assert [piece.usage for piece in pieces] == [Usage(CHUNK * 8, 0, "cancelled")]
    assert tiny.statistics()[0].fed_tokens - before == 2 * CHUNK


def test_a_cancel_in_the_queue_needs_no_turn(tiny: LocalEngine) -> None:
    engine = LocalEngine.load("tiny-random", device="cpu", lanes=1)
    first = engine.generate("abc", max_new_tokens=4000)
    next(first)
    gone = threading.Event()
    second = engine.generate("def", cancelled=gone.is_set)
    threading.Timer(0, gone.set).start()
    assert [piece.usage for piece in second] == [Usage(3, 0, "cancelled")]
    first.close()


def test_a_dropped_stream_leaves_nothing(tiny: LocalEngine) -> None:
    pieces = tiny.generate(ASK, max_new_tokens=4000)
    next(pieces)
    del pieces
    gc.collect()
    after = tiny.statistics()[0]
    assert (after.calls, after.used_blocks) == (0, 0)
    untouched = tiny.generate(ASK)
    del untouched
    assert tiny.statistics()[0].calls == 0


def test_threads_on_one_model_get_what_they_would_get_alone(tiny: LocalEngine) -> None:
    def answer(seed: int) -> str:
        ask = [{"role": "user", "content": f"Question {seed}" * (seed + 1)}]
        return text_of(tiny.generate(ask, max_new_tokens=25, temperature=1.0, seed=seed))

    alone = [answer(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(answer, range(8)))
    assert together == alone


def test_a_prompt_that_fills_the_context_is_refused_and_one_token_less_is_answered(tiny: LocalEngine) -> None:
    with pytest.raises(PromptTooLong, match="4096"):
        tiny.generate("x" * tiny.context)
    pieces = list(tiny.generate("x" * (tiny.context - 1)))
    usage = pieces[-1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.finish_reason) == (tiny.context - 1, 1, "length")


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
def test_wrong_options_fail_at_the_call_and_name_the_key(tiny: LocalEngine, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        tiny.generate(ASK, **wrong)


def test_a_stop_string_is_cut_off_wherever_it_begins(tiny: LocalEngine) -> None:
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


def test_rewinding_a_sequence_gives_the_logits_it_had(tiny: LocalEngine) -> None:
    torch = pytest.importorskip("torch")
    with tiny._sequence([1, 2, 3], 100, None, lambda: False) as sequence:
        before = sequence.logits()
        scores = sequence.log_probabilities([[5], [5, 6], [7, 8, 9]])
        sequence.append([10, 11, 12])
        sequence.logits()
        sequence.rewind(3)
        assert torch.allclose(sequence.logits(), before, atol=1e-5)
        assert sequence.log_probabilities([[5], [5, 6], [7, 8, 9]]) == pytest.approx(scores, abs=1e-4)
    assert scores[0] == pytest.approx(float(before.log_softmax(-1)[5]), abs=1e-5)
    assert scores[1] < scores[0]


def test_sampling_follows_the_distribution_and_ranked_holds_each_token_once() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampler = Sampler(temperature=0.5, seed=7)
    counts = torch.bincount(torch.tensor([sampler.pick(logits) for _ in range(4000)]), minlength=4) / 4000
    assert torch.allclose(counts, (logits / 0.5).softmax(-1), atol=0.03)
    assert sorted(sampler.ranked(torch.randn(500))) == list(range(500))
    assert list(Sampler(0.0, None).ranked(logits)) == [2, 1, 0, 3]


def test_devices_and_types_that_are_not_there_are_refused_by_name(tiny: LocalEngine) -> None:
    with pytest.raises(DeviceUnavailable, match="cuda:93"):
        LocalEngine.load("tiny-random", device="cuda:93")
    with pytest.raises(ConfigError, match="abacus"):
        LocalEngine.load("tiny-random", device="abacus")
    with pytest.raises(ConfigError, match="int3"):
        LocalEngine.load("tiny-random", device="cpu", dtype="int3")
    with pytest.raises(ConfigError, match="threads"):
        LocalEngine.load("tiny-random", device="cpu", threads=0)
    with pytest.raises(UnknownModel, match="smollm2-135m"):
        LocalEngine.load("no-such-model", device="cpu")


def test_equal_loads_share_their_weights_as_long_as_they_are_used(tiny: LocalEngine) -> None:
    first = LocalEngine.shared("tiny-random", device="cpu")
    assert LocalEngine.shared("tiny-random", device="cpu") is first
    assert LocalEngine.shared("tiny-random", device="cpu", dtype="bfloat16") is not first


def test_every_type_of_weights_generates(tiny: LocalEngine) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        model = LocalEngine.load("tiny-random", device="cpu", dtype=dtype)
        assert model.dtype == dtype
        assert list(model.generate(ASK, max_new_tokens=3))[-1].usage is not None


def test_a_cancelled_choice_is_an_error(tiny: LocalEngine) -> None:
    with pytest.raises(GenerationCancelled):
        tiny.choose(ASK, ["a", "b"], cancelled=lambda: True)


@pytest.mark.model
def test_the_real_model_answers_in_words_and_ends_its_turn(smollm2: LocalEngine) -> None:
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    pieces = list(smollm2.generate(ask, max_new_tokens=40))
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.input_tokens == smollm2.count_tokens(ask) == 37
    assert usage.finish_reason == "stop"
    assert text_of(pieces).isprintable()
