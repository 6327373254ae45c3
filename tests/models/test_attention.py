"""Attention over the blocks of an arena: programs of one length are read in one launch, and nobody can tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentrm.models.engine.attention import Span, Step, attend  # noqa: E402

HEADS, KV_HEADS, WIDTH, ROOM = 9, 3, 64, 320


def attended(lengths: list[int], kv: Any, rows: Any, window: int | None = None) -> tuple[Any, Step]:
    """What comes out for one new token of each of programs of these lengths, whose KV lies in two pieces each."""
    spans = []
    for i, length in enumerate(lengths):
        first = i * ROOM
        spans.append(Span(i, i + 1, length, [(first, first + 40), (first + 60, first + 20 + length)]))
    places = torch.tensor([span.segments[-1][1] - 1 for span in spans])
    layers = [(kv[0].clone(), kv[1].clone())]
    step = Step(SimpleNamespace(layers=layers), spans, places)  # type: ignore[arg-type]
    query, key, value = (part.transpose(0, 1)[None] for part in rows)
    out, _ = attend(
        SimpleNamespace(layer_idx=0), query, key, value, None, 0.125, agentrm_step=step, sliding_window=window
    )
    return out, step


@pytest.mark.parametrize("window", [None, 50])
def test_programs_of_one_length_read_together_get_what_each_gets_alone(seed: int, window: int | None) -> None:
    torch.manual_seed(seed)
    lengths = [120, 120, 120, 90, 256, 256]
    kv = torch.randn(2, len(lengths) * ROOM, KV_HEADS, WIDTH)
    rows = [torch.randn(len(lengths), heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    together, step = attended(lengths, kv, rows, window)
    assert [len(spans) for spans in step.alike()] == [3, 1, 2]
    for i, length in enumerate(lengths):
        mine = kv[:, i * ROOM : (i + 1) * ROOM]
        alone, _ = attended([length], mine, [part[i : i + 1] for part in rows], window)
        assert torch.equal(alone[0, 0], together[0, i])
