"""A generation frozen at any token goes on as if nothing had happened: here, in a file, in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrm.models import BeamSearch, Generation, LocalEngine, Snapshot, SnapshotCorrupt, SnapshotMismatch
from tests.models.test_engine import engine_with, text_of

ASK = "I am " * 18  # the model has much to say to it


def stopped(engine: LocalEngine, at: int, **options: Any) -> tuple[Generation, str]:
    """A generation paused after `at` tokens, and what it has shown."""
    shown: list[str] = []
    held: list[Generation] = []

    def look() -> bool:
        if held and held[0]._call.written >= at:
            engine._loops[0].pause(held.pop()._call, on=True)
        return False

    generation = engine.generate(ASK, cancelled=look, **options)
    held.append(generation)
    generation._begin()
    while not generation._call.paused:
        assert not generation._call.ended
        engine.statistics()
    while not generation._came.empty():
        shown.append(next(generation).text)
    return generation, "".join(shown)


@pytest.mark.parametrize("kv", [True, False], ids=["state", "text"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "sampled"])
def test_a_resumed_generation_writes_what_an_uninterrupted_one_writes(
    kv: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    with engine_with() as engine:
        expected = text_of(engine.generate(ASK, max_new_tokens=60, **options))
        for at in (1, 17, 59):
            generation, shown = stopped(engine, at, max_new_tokens=60, **options)
            snapshot = generation.snapshot(kv=kv)
            assert snapshot is not None and snapshot.written == at
            path = snapshot.save(tmp_path / "frozen")
            assert (path.stat().st_size > 50_000) == kv
            with engine_with() as other:
                resumed = other.resume(Snapshot.load(path))
                assert isinstance(resumed, Generation)
                pieces = list(resumed)
                assert shown + text_of(pieces) == expected
                usage = pieces[-1].usage
                assert usage is not None and (usage.input_tokens, usage.output_tokens) == (len(ASK), 60)
                assert (usage.cached_tokens > 0) == kv
            generation.resume()
            assert shown + text_of(generation) == expected


@pytest.mark.parametrize("kv", [True, False], ids=["state", "replayed"])
def test_below_float32_state_and_replay_give_the_same_tokens_too(kv: bool) -> None:
    expected = text_of(engine_with(dtype="bfloat16").generate(ASK, max_new_tokens=80))
    for at in (3, 40):
        generation, shown = stopped(engine_with(dtype="bfloat16"), at, max_new_tokens=80)
        snapshot = generation.snapshot(kv=kv)
        assert snapshot is not None
        resumed = engine_with(dtype="bfloat16").resume(snapshot)
        assert isinstance(resumed, Generation)
        assert shown + text_of(resumed) == expected


@pytest.mark.parametrize("kv", [True, False], ids=["state", "text"])
def test_a_beam_search_goes_on_with_the_same_beams(kv: bool, tmp_path: Path) -> None:
    with engine_with() as engine:
        expected = engine.beam_search(ASK, width=3, max_new_tokens=40).result()
        search = engine.beam_search(ASK, width=3, max_new_tokens=40)
        engine._loops[0].seats.slice_tokens = 1
        search.pause()
        search.resume()
        search.pause()
        snapshot = search.snapshot(kv=kv)
        assert snapshot is not None
        with engine_with() as other:
            resumed = other.resume(Snapshot.load(snapshot.save(tmp_path / "beams")))
            assert isinstance(resumed, BeamSearch)
            found = resumed.result()
        search.resume()
        assert search.result() == expected
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert [answer.score for answer in found] == pytest.approx([answer.score for answer in expected], abs=1e-5)


def test_a_wide_beam_search_finds_the_best_answer_there_is() -> None:
    torch = pytest.importorskip("torch")
    with engine_with() as engine:
        prompt = engine.tokenizer.encode(ASK)
        weights: Callable[..., Any] = engine._loaded.weights
        ends = engine.tokenizer.end_ids
        with torch.inference_mode():
            first = weights(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
            rows = [[*prompt, token] for token in range(len(first))]
            second = torch.cat([weights(torch.tensor([row])).logits[:, -1] for row in rows]).log_softmax(-1)
        totals = first.double()[:, None] + second.double()
        for end in ends:
            totals[end] = float("-inf")
        pairs = {(i // len(first), i % len(first)): float(v) / 2 for i, v in enumerate(totals.flatten())}
        ended = {(end,): float(first[end]) for end in ends}
        expected = sorted({**pairs, **ended}.items(), key=lambda one: -one[1])[:3]
        found = engine.beam_search(ASK, width=len(first), max_new_tokens=2).result()[:3]
    assert [answer.tokens for answer in found] == [tokens for tokens, _ in expected]
    assert [answer.score for answer in found] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_a_frozen_generation_goes_on_in_another_process(tmp_path: Path) -> None:
    with engine_with() as engine:
        expected = text_of(engine.generate(ASK, max_new_tokens=50))
        generation, shown = stopped(engine, 20, max_new_tokens=50)
        snapshot = generation.snapshot()
        assert snapshot is not None
        path = snapshot.save(tmp_path / "frozen")
    program = (
        "import sys; from agentrm.models import LocalEngine, Snapshot\n"
        "engine = LocalEngine.load('tiny-random', device='cpu', threads=1)\n"
        "text = ''.join(piece.text for piece in engine.resume(Snapshot.load(sys.argv[1])))\n"
        "sys.stdout.buffer.write(text.encode())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True, timeout=120)
    assert shown + done.stdout.decode() == expected


def test_a_snapshot_of_other_weights_or_a_torn_file_is_refused(tmp_path: Path) -> None:
    with engine_with() as engine:
        generation, _ = stopped(engine, 5, max_new_tokens=20)
        snapshot = generation.snapshot()
        assert snapshot is not None
        path = snapshot.save(tmp_path / "frozen")
        whole = path.read_bytes()
        assert generation.close() is None
        assert generation.snapshot() is None
    with engine_with(dtype="bfloat16") as other, pytest.raises(SnapshotMismatch, match="dtype"):
        other.resume(snapshot)
    for torn in (b"", whole[:100], whole[: len(whole) // 2], b"x" * 200):
        path.write_bytes(torn)
        with pytest.raises(SnapshotCorrupt, match="frozen"):
            Snapshot.load(path)
    for at in (len(whole) - 1, len(whole) * 3 // 4, len(whole) // 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SnapshotCorrupt, match="checksum"):
            Snapshot.load(path)
    with pytest.raises(FileNotFoundError):
        Snapshot.load(tmp_path / "nothing")
