"""Runs the model once over the next tokens of many chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrm.models.engine import attention
from agentrm.models.engine.arena import KVShape
from agentrm.models.engine.attention import Span, Step
from agentrm.models.errors import UnsupportedModel

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.store import Chain, Store


@dataclass(frozen=True, slots=True)
class Row:
    """The next `count` tokens of a chain, whose KV has a place; logits are wanted of the last `keep` of them."""

    chain: Chain
    count: int
    keep: int


@dataclass(frozen=True, slots=True)
class Logits:
    """What follows the last `keep` tokens of a row: scores [keep, vocabulary] on the model's device, and the likeliest
    token after the last one."""

    scores: torch.Tensor
    best: int

    def last(self) -> torch.Tensor:
        """Float32 scores after the last token, on the CPU."""
        return self.scores[-1].float().cpu()


class Forward:
    """A model whose attention goes over the blocks of an arena. Raises UnsupportedModel for what has no such
    attention (recurrent layers, layers of different shapes, attention with sinks or caps)."""

    def __init__(self, weights: torch.nn.Module, device: torch.device) -> None:
        from agentrm.models.engine.linear import pack

        model: Any = weights
        self._weights, self._device = model, device
        attention.register()
        model.set_attn_implementation(attention.NAME)
        pack(model)
        self.shape = self._probe()

    def run(self, rows: Sequence[Row], store: Store) -> list[Logits | None]:
        """Feeds the rows; None for a row of which nothing is wanted. The chains have fed more afterwards."""
        import torch

        ids: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        wanted: list[int] = []
        spans: list[Span] = []
        for row in rows:
            first, last = row.chain.fed, row.chain.fed + row.count
            for start, end in store.segments(row.chain, first, last):
                places += range(start, end)
            spans.append(Span(len(ids), len(ids) + row.count, last, store.segments(row.chain, 0, last)))
            ids += row.chain.tokens[first:last]
            positions += range(first, last)
            wanted += range(len(ids) - row.keep, len(ids))
        merge = self._device.type != "cpu" and len(rows) > 1 and len(ids) == len(rows)
        step = Step(store.arena, spans, torch.tensor(places, device=self._device), merge)
        with torch.inference_mode():
            scores = self._logits(ids, positions, wanted or [len(ids) - 1], step)
            best = scores.argmax(-1).tolist()
        for row in rows:
            store.wrote(row.chain, row.count)
        results: list[Logits | None] = []
        at = 0
        for row in rows:
            at += row.keep
            results.append(Logits(scores[at - row.keep : at], best[at - 1]) if row.keep else None)
        return results

    def _logits(self, ids: list[int], positions: list[int], wanted: list[int], step: Step) -> torch.Tensor:
        import torch

        out = self._weights(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=self._device),
            agentrm_step=step,
        )
        scores: torch.Tensor = out.logits[0]
        return scores

    def _probe(self) -> KVShape:
        """Learns from one token what the layers keep."""
        import torch

        step = Step(None, [], torch.empty(0))
        with torch.inference_mode():
            self._logits([0], [0], [0], step)
        config = self._weights.config
        layers = getattr(config, "num_hidden_layers", None)
        shapes = set(step.shapes)
        if len(step.shapes) != layers or len(shapes) != 1:
            name = type(self._weights).__name__
            raise UnsupportedModel("model", name, "decoders all of whose layers attend in the same shape")
        (heads, width) = shapes.pop()
        return KVShape(len(step.shapes), heads, width, next(self._weights.parameters()).element_size())
