"""Attention of one forward over the tokens of many programs, each over its own blocks.

The tokens of all programs of a step stand behind each other in one row, so that the model's large matrices are read
once for all of them, and nothing is padded. Only attention must tell the programs apart. It is registered with
transformers under the name NAME; the model's forward hands it the step as the keyword argument `agentrm_step`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrm.models.errors import UnsupportedModel

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.arena import Arena, Segment

NAME = "agentrm-blocks"
_FOREIGN = ("softcap", "s_aux", "position_bias")


@dataclass(slots=True)
class Span:
    """One program's tokens in a step: `first` to before `last` of the row, the newest of `length` tokens that lie in
    `segments`."""

    first: int
    last: int
    length: int
    segments: list[Segment]
    masks: dict[int | None, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Step:
    """What attention needs to know. `places`: where in the arena the tokens of the row go. `merge`: read programs that
    feed one token each together (padded copies, few launches), as a GPU likes it, not one by one without copies."""

    arena: Arena | None
    spans: list[Span]
    places: torch.Tensor
    merge: bool = False
    shapes: list[tuple[int, int]] = field(default_factory=list)
    table: Any = None
    _alike: list[list[Span]] = field(default_factory=list)

    def alike(self) -> list[list[Span]]:
        """The spans in the order of the row; neighbours that feed one token each and are of one length (beams, samples,
        agents of one prompt) in a list together, for one launch: what comes out is the same to the bit."""
        if not self._alike:
            before = None
            for span in self.spans:
                kind = span.length if span.last - span.first == 1 else None
                if kind is not None and kind == before:
                    self._alike[-1].append(span)
                else:
                    self._alike.append([span])
                before = kind
        return self._alike


def register() -> None:
    """Makes NAME known to transformers; again it does nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    agentrm_step: Step | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Stores the keys and values of the row, then attends. Query [1, heads, tokens, width]."""
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    if agentrm_step is None:  # the model is used directly, without the engine
        out = attention(query, _wide(key, query), _wide(value, query), scale=scaling, is_causal=query.shape[2] > 1)
        return out.transpose(1, 2).contiguous(), None
    step = agentrm_step
    for name in _FOREIGN:
        if more.get(name) is not None:
            raise UnsupportedModel("attention with", name, "plain, grouped and sliding attention")
    if step.arena is None:  # the probe: it only learns the shapes
        step.shapes.append((key.shape[1], key.shape[3]))
        return query.transpose(1, 2).contiguous(), None
    keys, values = step.arena.layers[module.layer_idx]
    keys.index_copy_(0, step.places, key[0].transpose(0, 1))
    values.index_copy_(0, step.places, value[0].transpose(0, 1))
    heads, groups = query.shape[1], query.shape[1] // key.shape[1]
    if step.merge and sliding_window is None:
        return _merged(step, query, keys, values, scaling), None
    parts = []
    for spans in step.alike():
        span = spans[0]
        count, length, pieces = span.last - span.first, span.length, [each.segments for each in spans]
        if sliding_window is not None and length - count + 1 > sliding_window:
            length = sliding_window + count - 1
            pieces = [_tail(segments, length) for segments in pieces]
        k, v = _read_all(keys, pieces), _read_all(values, pieces)
        q = query[:, :, span.first : spans[-1].last]
        if count == 1:
            out = attention(q[0].transpose(0, 1).reshape(len(spans), -1, groups, q.shape[3]), k, v, scale=scaling)
            parts.append(out.reshape(1, len(spans), heads, -1))
            continue
        if length == count and (sliding_window is None or count <= sliding_window):
            out = attention(q, _wide(k, q), _wide(v, q), scale=scaling, is_causal=True)
        else:
            mask = _mask(span, count, length, sliding_window, q.device)
            out = attention(q, _wide(k, q), _wide(v, q), scale=scaling, attn_mask=mask)
        parts.append(out.transpose(1, 2))
    return torch.cat(parts, dim=1), None


def _read_all(layer: torch.Tensor, pieces: list[list[Segment]]) -> torch.Tensor:
    """The tokens of programs of one length, [programs, heads, tokens, width]; a single one is not copied for it."""
    import torch

    read = [_read(layer, segments) for segments in pieces]
    return (read[0][None] if len(read) == 1 else torch.stack(read)).transpose(1, 2)


def _read(layer: torch.Tensor, segments: list[Segment]) -> torch.Tensor:
    import torch

    if len(segments) == 1:
        return layer[segments[0][0] : segments[0][1]]
    return torch.cat([layer[first:last] for first, last in segments])


def _tail(segments: list[Segment], length: int) -> list[Segment]:
    """The last `length` tokens."""
    tail: list[Segment] = []
    for first, last in reversed(segments):
        taken = min(length, last - first)
        tail.insert(0, (last - taken, last))
        length -= taken
        if not length:
            break
    return tail


def _wide(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """One key or value head for each query head."""
    groups = query.shape[1] // x.shape[1]
    if groups == 1:
        return x
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, groups, length, width).reshape(batch, heads * groups, length, width)


def _mask(span: Span, count: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Each of the last `count` tokens sees those before it, and no more than a window of them; same in all layers."""
    import torch

    mask: torch.Tensor | None = span.masks.get(window)
    if mask is None:
        mask = torch.ones(count, length, dtype=torch.bool, device=device).tril(length - count)
        if window is not None:
            mask = mask.triu(length - count - window + 1)
        span.masks[window] = mask
    return mask


def _merged(
    step: Step, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One attention for all programs: their tokens gathered, padded to the longest, the padding masked."""
    import torch

    if step.table is None:
        longest = max(span.length for span in step.spans)
        rows = [[i for first, last in span.segments for i in range(first, last)] for span in step.spans]
        table = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=query.device)
        lengths = torch.tensor([span.length for span in step.spans], device=query.device)
        step.table = table, (torch.arange(longest, device=query.device) < lengths[:, None])[:, None, None]
    table, mask = step.table
    k, v = keys[table].transpose(1, 2), values[table].transpose(1, 2)
    rows_, kv_heads = k.shape[0], k.shape[1]
    q = query[0].transpose(0, 1).reshape(rows_, kv_heads, -1, query.shape[3])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return out.reshape(1, rows_, query.shape[1], -1)
