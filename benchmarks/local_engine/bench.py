"""The model that is measured, ours and the peers', and how times become figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrm.models import Generation, LocalEngine
from agentrm.models.engine.thread import apart
from agentrm.models.loading import load_model

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text() * 8
Row = dict[str, Any]


class Bench:
    """The model, loaded once for ours and once for the peers (whose attention is transformers' own)."""

    def __init__(self, model: str, device: str, dtype: str | None, quick: bool) -> None:
        self.model, self.device, self.dtype, self.quick = model, device, dtype, quick
        loaded = LocalEngine.load(model, device=device, dtype=dtype)._loaded
        words = replace(loaded.tokenizer, end_ids=frozenset())  # every answer gets the length that is asked for
        self.engine = LocalEngine([replace(loaded, tokenizer=words)])
        self._peer: Any = None
        self.tokens = self.engine.tokenizer.encode(TEXT)
        self._at = 0

    def load(self, **options: Any) -> LocalEngine:
        """Another engine over the same weights."""
        return LocalEngine([self.engine._loaded], **options)

    @property
    def peer(self) -> Any:
        if self._peer is None:
            own = self.engine._loaded
            self._peer = apart(lambda: load_model(self.model, own.device, own.dtype)).weights
            self._peer.set_attn_implementation("sdpa")
        return self._peer

    def prompt(self, length: int) -> str:
        """Text of about that many tokens that was not used before."""
        self._at += 997
        at = self._at % (len(self.tokens) - length - 1)
        return self.engine.tokenizer.decode(self.tokens[at : at + length])

    def generate(self, rows: Sequence[Sequence[int]], count: int) -> list[float]:
        """transformers' own batched generate: greedy, exactly `count` tokens each, prompts padded on the left. Returns
        the time at which each token was chosen."""
        import torch
        from transformers import LogitsProcessorList

        times: list[float] = []

        def stamp(ids: Any, scores: Any) -> Any:
            times.append(time.perf_counter())
            return scores

        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=self.peer.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=self.peer.device)
        peer = self.peer

        def work() -> None:
            with torch.inference_mode():
                peer.generate(
                    ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False,
                    pad_token_id=0, logits_processor=LogitsProcessorList([stamp]),
                )  # fmt: skip

        apart(work)  # as ours: nobody's workers of torch are in the other's way
        return times


def timed(work: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def text_of(generation: Generation) -> str:
    return "".join(piece.text for piece in generation)


def spread(ratios: Sequence[float]) -> str:
    """The lowest and the highest round."""
    return f"{min(ratios):.3g} to {max(ratios):.3g}"


def ratios_of(peer: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Of each round."""
    return [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]


def checked(row: Row, holds: bool, why: str) -> Row:
    """The row, which says so if what must hold does not."""
    return row if holds else row | {"failed": why}
