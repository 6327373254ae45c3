"""Linear layers of a CPU with their weights in the order in which oneDNN reads them. Imports torch.

torch orders a float32 matrix anew for each product of more than one row, which costs more than what a few programs
compute: a step of 8 takes up to twice as long. Ordered once, a product also rounds each row in the same way whatever
rows stand beside it, so that a program writes the same alone and among others.
"""

from __future__ import annotations

from typing import Any

import torch

_BEGINNING = 16
_ROWS = 8
"""The batch that the order is best for; it holds for all."""


class PackedLinear(torch.nn.Module):
    """A linear layer that keeps nothing but the ordered weight. `weight` has its shape and type, and no numbers."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.weight = torch.nn.Parameter(weight.to("meta"), requires_grad=False)
        self.register_buffer("beginning", weight.reshape(-1)[:_BEGINNING].clone(), persistent=False)
        self._ordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._ordered, self.bias, "none", [], "")
        return out

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self._ordered.to_dense()


def pack(model: torch.nn.Module) -> None:
    """Replaces the float32 linear layers on the CPU, where torch has oneDNN; again it does nothing. A weight that an
    embedding shares then has a second place in memory."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    if not known or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and _fits(child.weight):
                setattr(parent, name, PackedLinear(child))


def _fits(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def beginning(model: torch.nn.Module, name: str, weight: torch.Tensor) -> torch.Tensor:
    """The first numbers of the weight of that name, packed or not."""
    if weight.is_meta:
        weight = model.get_buffer(name.removesuffix("weight") + "beginning")
    return weight.detach().reshape(-1)[:_BEGINNING].float().cpu()
